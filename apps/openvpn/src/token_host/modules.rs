//! The PKCS#11 modules in the token host, and the tokens that they know.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use adit_openvpn::tls::TokenName;
use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::error::{Error, RvError};
use cryptoki::mechanism::rsa::{PkcsMgfType, PkcsPssParams};
use cryptoki::mechanism::{Mechanism as Call, MechanismType};
use cryptoki::object::{Attribute, AttributeType, CertificateType, ObjectClass, ObjectHandle};
use cryptoki::session::{Session, SessionState, UserType};
use cryptoki::slot::{Slot, TokenInfo};
use cryptoki::types::{AuthPin, Ulong};

use super::protocol::{
    Certificate, MAX_CERTIFICATE, MAX_CERTIFICATES, MAX_NAME, MAX_TOKENS, Mechanism, Mechanisms,
    ModuleFile, Pin, Reply, SeenToken, TokenRef,
};

/// The maximum length of a signature, which is that of an RSA key of 32,768 bits.
const MAX_SIGNATURE: usize = 4096;

/// The loaded modules.
pub(super) struct Modules {
    loaded: Vec<Module>,
    /// The certificates of the last scan.
    certificates: Vec<Certificate>,
    /// The tokens with an open session, which keeps them logged in.
    open: HashMap<TokenRef, OpenToken>,
    key: Option<Key>,
    /// The time after which a token must be logged in to again.
    pin_cache: Option<Duration>,
}

struct Module {
    context: Pkcs11,
    file: ModuleFile,
}

/// The key to use.
#[derive(Clone)]
struct Key {
    token: TokenRef,
    id: Vec<u8>,
    /// Whether it requires the PIN for each signature.
    always: bool,
}

/// A token with an open session.
struct OpenToken {
    session: Session,
    /// Whether the token must be logged in to.
    login: bool,
    /// The time of the login.
    since: Option<Instant>,
    /// Whether a key was used since then. Each login is good for one signature, however short the time is.
    used: bool,
    /// The PIN, for a key that requires it with each signature. `None` for a keypad, and for other keys.
    pin: Option<AuthPin>,
}

/// The reason why a token cannot be used.
#[derive(Debug)]
enum Stop {
    Missing,
    PinNeeded,
    /// The session is over: the token was removed, or removed and inserted again.
    Lost,
    Failed(String),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        let Error::Pkcs11(code, function) = error else { return Self::Failed(error.to_string()) };
        match code {
            RvError::DeviceError
            | RvError::DeviceRemoved
            | RvError::KeyHandleInvalid
            | RvError::ObjectHandleInvalid
            | RvError::OperationActive
            | RvError::SessionClosed
            | RvError::SessionHandleInvalid
            | RvError::SlotIdInvalid
            | RvError::TokenNotPresent
            | RvError::TokenNotRecognized => Self::Lost,
            RvError::UserNotLoggedIn => Self::PinNeeded,
            code => Self::Failed(format!("C_{function:?} failed: {code:?}")),
        }
    }
}

impl Stop {
    fn reply(self, token: &TokenRef) -> Reply {
        match self {
            Self::Missing | Self::Lost => Reply::Missing,
            Self::PinNeeded => Reply::PinNeeded,
            Self::Failed(reason) => Reply::Failed(format!("token '{}': {reason}", token.label())),
        }
    }
}

impl Modules {
    /// Loads and initializes the modules.
    pub(super) fn load(files: Vec<ModuleFile>, pin_cache: Option<u64>) -> Result<Self, String> {
        let mut loaded = Vec::new();
        for file in files {
            let failed = |e: Error| match e {
                Error::Pkcs11(code, function) => {
                    format!("PKCS#11 module '{}': C_{function:?} failed: {code:?}", file.file)
                }
                Error::LibraryLoading(e) => {
                    let why = std::error::Error::source(&e)
                        .map_or_else(|| e.to_string(), ToString::to_string);
                    format!(
                        "PKCS#11 module '{}' cannot be loaded: {why}: check pkcs11-providers, and install the package \
                         of the module",
                        file.file
                    )
                }
                other => format!("PKCS#11 module '{}' cannot be used: {other}", file.file),
            };
            let context = Pkcs11::new(&file.file).map_err(failed)?;
            match context.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK)) {
                // The configuration names it twice.
                Ok(()) | Err(Error::Pkcs11(RvError::CryptokiAlreadyInitialized, _)) => {}
                Err(e) => return Err(failed(e)),
            }
            loaded.push(Module { context, file });
        }
        let pin_cache = pin_cache.map(Duration::from_secs);
        let (certificates, open) = (Vec::new(), HashMap::new());
        Ok(Self { loaded, certificates, open, key: None, pin_cache })
    }

    /// Logs out everywhere and ends the modules.
    pub(super) fn close(mut self) {
        self.open.clear();
        for module in self.loaded {
            let _ = module.context.finalize();
        }
    }

    /// Looks for tokens, and for certificates on them.
    pub(super) fn scan(&mut self) -> Reply {
        let mut seen = Vec::new();
        self.certificates.clear();
        for number in 0..self.loaded.len() {
            let Some(module) = self.loaded.get(number) else { break };
            let (context, file) = (module.context.clone(), module.file.clone());
            // A module without a reader fails instead of returning no slots.
            let slots = context.get_slots_with_token().unwrap_or_default();
            for slot in slots {
                if seen.len() >= MAX_TOKENS {
                    break;
                }
                let Ok(info) = context.get_token_info(slot) else { continue };
                let token = TokenRef::new(number, name(&info));
                self.expire(&token);
                // The last slot of some modules is for a token that is yet to be initialized.
                let Ok(login) = self.scan_token(&context, slot, &info, &token, file.private) else {
                    continue;
                };
                let keypad = file.protected && info.protected_authentication_path();
                seen.push(SeenToken { token, login, hidden: login && file.private, keypad });
            }
        }
        Reply::Scanned { tokens: seen, certificates: self.certificates.len() }
    }

    /// Adds the certificates of a token. Returns whether it must be logged in to before its keys can be used. With
    /// `private`, its certificates too can be seen only then.
    fn scan_token(
        &mut self,
        context: &Pkcs11,
        slot: Slot,
        info: &TokenInfo,
        token: &TokenRef,
        private: bool,
    ) -> Result<bool, Error> {
        let own = self.open.get(token).filter(|open| open.session.get_session_info().is_ok());
        let temporary;
        let session = match own {
            Some(open) => &open.session,
            None => {
                temporary = context.open_ro_session(slot)?;
                &temporary
            }
        };
        let logged_in = session.get_session_info()?.session_state() != SessionState::RoPublic;
        let login = info.login_required() && !logged_in;
        if private && login {
            return Ok(true);
        }
        let template = [
            Attribute::Class(ObjectClass::CERTIFICATE),
            Attribute::CertificateType(CertificateType::X_509),
        ];
        let room = MAX_CERTIFICATES.saturating_sub(self.certificates.len());
        let handles: Vec<_> = session.iter_objects(&template)?.take(room).collect();
        let wanted = [AttributeType::Id, AttributeType::Label, AttributeType::Value];
        for handle in handles {
            // One that cannot be read does not hide the others.
            let Ok(attributes) = handle.and_then(|handle| session.get_attributes(handle, &wanted))
            else {
                continue;
            };
            let mut certificate = Certificate {
                token: token.clone(),
                id: Vec::new(),
                label: String::new(),
                der: Vec::new(),
            };
            for attribute in attributes {
                match attribute {
                    Attribute::Id(id) => certificate.id = id,
                    Attribute::Label(label) => {
                        certificate.label = String::from_utf8_lossy(&label).into_owned();
                    }
                    Attribute::Value(der) => certificate.der = der,
                    _ => {}
                }
            }
            let Certificate { id, label, der, .. } = &certificate;
            let fits =
                id.len() <= MAX_NAME && label.len() <= MAX_NAME && der.len() <= MAX_CERTIFICATE;
            if fits && !der.is_empty() {
                self.certificates.push(certificate);
            }
        }
        Ok(login)
    }

    /// Returns a certificate of the last scan.
    pub(super) fn certificate(&self, number: usize) -> Reply {
        match self.certificates.get(number) {
            Some(certificate) => Reply::Certificate(Box::new(certificate.clone())),
            None => Reply::Failed("token host: there is no such certificate".into()),
        }
    }

    /// Logs in to a token.
    pub(super) fn login(&mut self, token: &TokenRef, pin: Option<Pin>, by_hand: bool) -> Reply {
        match self.try_login(token, pin, by_hand) {
            Ok(reply) => reply,
            Err(stop) => {
                if matches!(stop, Stop::Lost) {
                    self.open.remove(token);
                }
                stop.reply(token)
            }
        }
    }

    fn try_login(
        &mut self,
        token: &TokenRef,
        pin: Option<Pin>,
        by_hand: bool,
    ) -> Result<Reply, Stop> {
        let (context, slot, info) = self.find(token)?;
        let locked = || {
            Stop::Failed(
                "its PIN is locked after too many wrong ones: unblock it with the PUK or the security officer's PIN"
                    .into(),
            )
        };
        if info.user_pin_locked() {
            return Err(locked());
        }
        if pin.is_some() && !by_hand && info.user_pin_final_try() {
            return Ok(Reply::LastTry);
        }
        // Until the key is known, it may be one that requires the PIN each time.
        let keeps_pin = self.key.as_ref().is_none_or(|key| key.always);
        let open = self.open_token(token, &context, slot, &info)?;
        let pin = pin.map(|Pin(text)| AuthPin::from(text.as_str().to_owned()));
        match open.session.login(UserType::User, pin.as_ref()) {
            Ok(()) | Err(Error::Pkcs11(RvError::UserAlreadyLoggedIn, _)) => {
                (open.since, open.used) = (Some(Instant::now()), false);
                open.pin = pin.filter(|_| keeps_pin);
                Ok(Reply::Done)
            }
            Err(Error::Pkcs11(code, function)) => match code {
                RvError::PinIncorrect | RvError::PinInvalid | RvError::PinLenRange => {
                    let last = context.get_token_info(slot).is_ok_and(|i| i.user_pin_final_try());
                    Ok(Reply::WrongPin { last })
                }
                RvError::PinLocked => Err(locked()),
                RvError::PinExpired => {
                    Err(Stop::Failed("its PIN has expired: set a new one first".into()))
                }
                RvError::UserPinNotInitialized => {
                    Err(Stop::Failed("it has no PIN yet: set one first".into()))
                }
                RvError::FunctionCanceled | RvError::Cancel => {
                    Err(Stop::Failed("the PIN was not entered on its keypad".into()))
                }
                code => Err(Error::Pkcs11(code, function).into()),
            },
            Err(e) => Err(e.into()),
        }
    }

    /// Uses the key with this id from now on.
    pub(super) fn choose(&mut self, token: TokenRef, id: Vec<u8>) -> Reply {
        match self.try_choose(&token, &id) {
            Ok((mechanisms, always)) => {
                for (_, open) in
                    self.open.iter_mut().filter(|(other, _)| !always || **other != token)
                {
                    open.pin = None;
                }
                self.key = Some(Key { token, id, always });
                Reply::Ready(mechanisms)
            }
            Err(stop) => stop.reply(&token),
        }
    }

    fn try_choose(&mut self, token: &TokenRef, id: &[u8]) -> Result<(Mechanisms, bool), Stop> {
        let (context, slot, _) = self.find(token)?;
        let open = self.ready(token)?;
        let key = private_key(&open.session, id)?;
        let attributes = open.session.get_attributes(key, &[AttributeType::AlwaysAuthenticate])?;
        let always = attributes.contains(&Attribute::AlwaysAuthenticate(true));
        let all = context.get_mechanism_list(slot)?;
        let has = |mechanism| all.contains(&mechanism);
        let mechanisms = Mechanisms {
            ecdsa: has(MechanismType::ECDSA),
            rsa_pkcs: has(MechanismType::RSA_PKCS),
            rsa_pss: has(MechanismType::RSA_PKCS_PSS),
            rsa_raw: has(MechanismType::RSA_X_509),
        };
        Ok((mechanisms, always))
    }

    /// Signs with the key in use. A token that was removed and is there again gets a new session.
    pub(super) fn sign(&mut self, mechanism: Mechanism, data: &[u8]) -> Reply {
        let Some(key) = self.key.clone() else {
            return Reply::Failed("token host: no key is in use".into());
        };
        let mut again = true;
        loop {
            let signed = self.ready(&key.token).and_then(|open| sign(open, &key, mechanism, data));
            match signed {
                Ok(signature) => {
                    if let Some(open) = self.open.get_mut(&key.token) {
                        open.used = true;
                    }
                    return Reply::Signed(signature);
                }
                Err(Stop::Lost) => {
                    self.open.remove(&key.token);
                    if !std::mem::take(&mut again) {
                        return Reply::Missing;
                    }
                }
                Err(stop) => return stop.reply(&key.token),
            }
        }
    }

    /// Returns a token that has a session and is logged in to.
    fn ready(&mut self, token: &TokenRef) -> Result<&OpenToken, Stop> {
        self.expire(token);
        if !self.is_open(token) {
            let (context, slot, info) = self.find(token)?;
            self.open_token(token, &context, slot, &info)?;
        }
        let open = self.open.get(token).ok_or(Stop::Missing)?;
        let state = open.session.get_session_info()?.session_state();
        if open.login && state == SessionState::RoPublic {
            return Err(Stop::PinNeeded);
        }
        Ok(open)
    }

    /// Returns whether a token has a session that is still valid.
    fn is_open(&self, token: &TokenRef) -> bool {
        self.open.get(token).is_some_and(|open| open.session.get_session_info().is_ok())
    }

    /// Logs out of a token if the PIN was entered too long ago.
    fn expire(&mut self, token: &TokenRef) {
        let Some(open) = self.open.get_mut(token) else { return };
        let times = self.pin_cache.zip(open.since);
        if open.used && times.is_some_and(|(cache, since)| since.elapsed() >= cache) {
            // Without its session, the token is logged out of too.
            let _ = open.session.logout();
            self.open.remove(token);
        }
    }

    /// Returns the open token, and opens a session if there is none.
    fn open_token(
        &mut self,
        token: &TokenRef,
        context: &Pkcs11,
        slot: Slot,
        info: &TokenInfo,
    ) -> Result<&mut OpenToken, Stop> {
        if !self.is_open(token) {
            self.open.remove(token);
            if self.open.len() >= MAX_TOKENS {
                return Err(Stop::Failed(format!("{MAX_TOKENS} tokens are in use")));
            }
            let session = context.open_ro_session(slot)?;
            let login = info.login_required();
            let open = OpenToken { session, login, since: None, used: false, pin: None };
            self.open.insert(token.clone(), open);
        }
        self.open.get_mut(token).ok_or(Stop::Missing)
    }

    /// Finds a token by the names with which it describes itself, because its slot may have changed.
    fn find(&self, token: &TokenRef) -> Result<(Pkcs11, Slot, TokenInfo), Stop> {
        let module = self.loaded.get(token.module).ok_or(Stop::Missing)?;
        let wanted = token.name();
        for slot in module.context.get_slots_with_token()?.into_iter().take(MAX_TOKENS) {
            if let Ok(info) = module.context.get_token_info(slot)
                && name(&info) == wanted
            {
                return Ok((module.context.clone(), slot, info));
            }
        }
        Err(Stop::Missing)
    }
}

fn name(info: &TokenInfo) -> TokenName {
    let text = |text: &str| text.trim_end_matches(['\0', ' ']).to_owned();
    TokenName {
        manufacturer: text(info.manufacturer_id()),
        model: text(info.model()),
        serial: text(info.serial_number()),
        label: text(info.label()),
    }
}

fn private_key(session: &Session, id: &[u8]) -> Result<ObjectHandle, Stop> {
    let template = [Attribute::Class(ObjectClass::PRIVATE_KEY), Attribute::Id(id.to_vec())];
    let mut found = session.iter_objects(&template)?;
    found.next().transpose()?.ok_or_else(|| {
        Stop::Failed("it has the certificate, but no private key with the certificate's id".into())
    })
}

fn sign(open: &OpenToken, key: &Key, mechanism: Mechanism, data: &[u8]) -> Result<Vec<u8>, Stop> {
    let call = match mechanism {
        Mechanism::Ecdsa => Call::Ecdsa,
        Mechanism::RsaPkcs => Call::RsaPkcs,
        Mechanism::RsaRaw => Call::RsaX509,
        Mechanism::RsaPss(bits) => {
            let (hash_alg, mgf) = match bits {
                384 => (MechanismType::SHA384, PkcsMgfType::MGF1_SHA384),
                512 => (MechanismType::SHA512, PkcsMgfType::MGF1_SHA512),
                _ => (MechanismType::SHA256, PkcsMgfType::MGF1_SHA256),
            };
            let s_len = Ulong::try_from(data.len())?;
            Call::RsaPkcsPss(PkcsPssParams { hash_alg, mgf, s_len })
        }
    };
    let session = &open.session;
    let handle = private_key(session, &key.id)?;
    let signature = if key.always {
        // The login must be between the beginning of the operation and the signature.
        session.sign_init(&call, handle)?;
        session.login(UserType::ContextSpecific, open.pin.as_ref())?;
        session.sign_update(data)?;
        session.sign_final()?
    } else {
        session.sign(&call, handle, data)?
    };
    if signature.len() > MAX_SIGNATURE {
        return Err(Stop::Failed(format!("it made a signature of {} bytes", signature.len())));
    }
    Ok(signature)
}
