//! The choice of a certificate, with tokens of SoftHSM and a person who answers.

use std::collections::VecDeque;

use adit_engine::auth::Challenge;
use adit_openvpn::client::Credentials;
use adit_openvpn::config::UserPass;
use adit_openvpn::tls::SignatureForm;
use adit_testbed::token::PIN;

use super::*;
use crate::token_host::tests::Fixture;

/// A person, who is asked in this order.
#[derive(Default)]
struct Person {
    answers: VecDeque<&'static str>,
    asked: Vec<String>,
    shown: Vec<(String, String)>,
}

impl Person {
    fn who_answers(answers: &[&'static str]) -> Self {
        Self { answers: answers.iter().copied().collect(), ..Self::default() }
    }

    fn answer(&mut self, question: &str) -> String {
        self.asked.push(question.into());
        self.answers.pop_front().unwrap_or_else(|| panic!("{question}")).to_owned()
    }
}

impl Ask for Person {
    fn can_answer(&self) -> bool {
        !self.answers.is_empty()
    }

    fn key_password(&mut self) -> Result<Zeroizing<String>, Fault> {
        unreachable!()
    }

    fn key_refused(&mut self, _: &str) -> Result<(), Fault> {
        unreachable!()
    }

    fn login(&mut self, _: &str, _: Option<String>) -> Result<Credentials, Fault> {
        unreachable!()
    }

    fn login_with_challenge(&mut self, _: &UserPass, _: &Challenge) -> Result<Credentials, Fault> {
        unreachable!()
    }

    fn token_pin(&mut self, token: &str) -> Result<Zeroizing<String>, Fault> {
        Ok(Zeroizing::new(self.answer(&format!("PIN of {token}"))))
    }

    fn insert_token(&mut self, token: &str) -> Result<bool, Fault> {
        Ok(self.answer(&format!("insert {token}")) == "ok")
    }

    fn show_tokens(&mut self, identities: Vec<(String, String)>) {
        self.shown = identities;
    }

    fn token_certificate(&mut self) -> Result<String, Fault> {
        let number = self.answer("certificate").parse::<usize>().unwrap();
        Ok(self.shown[number].0.clone())
    }
}

fn wanted(query: Option<&str>) -> Pkcs11 {
    let query = query.map(|text| CertificateQuery::parse(text).unwrap());
    Pkcs11 { providers: Vec::new(), query, pin_cache: None, extra: None }
}

fn file(pin: &str) -> Option<Zeroizing<String>> {
    Some(Zeroizing::new(pin.to_owned()))
}

#[track_caller]
fn refused(result: Result<(Pem, Arc<dyn KeyHolder>), Fault>, part: &str) {
    let fault = result.err().unwrap().to_string();
    assert!(fault.contains(part), "{fault}");
}

const OFFICE: &str = "pkcs11:token=office;id=%02";

#[test]
fn a_person_chooses_a_certificate_and_enters_its_pin() {
    let Some(fixture) = Fixture::new("a_person_chooses_a_certificate_and_enters_its_pin") else {
        return;
    };
    fixture.add("office", "03", "ec -pkeyopt ec_paramgen_curve:P-384", false);
    let tokens = fixture.plain();
    let mut person = Person::who_answers(&["1", "9999", PIN]);
    let (cert, key) = open(&tokens, &wanted(None), None, true, &mut person).unwrap();
    assert_eq!(person.asked, ["certificate", "PIN of office", "PIN of office"]);
    assert_eq!(cert.origin, "token 'office'");
    let shown = BASE64_STANDARD.encode(pem_content(&cert).unwrap());
    assert_eq!((person.shown.len(), &person.shown[1].1), (2, &shown));
    assert!(key.sign(SignatureForm::Ecdsa, &[7; 48]).is_ok());
    // The token stays logged in.
    let mut person = Person::default();
    open(&tokens, &wanted(Some(OFFICE)), None, true, &mut person).unwrap();
}

/// Returns the DER in a PEM file.
fn pem_content(cert: &Pem) -> Option<Vec<u8>> {
    let text = String::from_utf8_lossy(&cert.bytes);
    let lines: String = text.lines().filter(|line| !line.starts_with('-')).collect();
    BASE64_STANDARD.decode(lines).ok()
}

#[test]
fn three_wrong_pins_are_too_many() {
    let Some(fixture) = Fixture::new("three_wrong_pins_are_too_many") else { return };
    let tokens = fixture.faulty();
    let mut person = Person::who_answers(&["1", "2", "3", PIN]);
    refused(open(&tokens, &wanted(Some(OFFICE)), None, true, &mut person), "the PIN is wrong");
    assert_eq!(fixture.store.logins().len(), 3);
}

#[test]
fn a_wrong_pin_before_the_last_one_ends_the_attempts() {
    let Some(fixture) = Fixture::new("a_wrong_pin_before_the_last_one_ends_the_attempts") else {
        return;
    };
    let tokens = fixture.faulty();
    fixture.begin("final-try");
    let mut person = Person::who_answers(&["9999", PIN]);
    let opened = open(&tokens, &wanted(Some(OFFICE)), None, true, &mut person);
    refused(opened, "one more wrong PIN locks the token");
    assert_eq!(fixture.store.logins(), ["1 9999"]);
}

#[test]
fn a_pin_in_a_file_is_tried_once_and_never_as_the_last_one() {
    let Some(fixture) = Fixture::new("a_pin_in_a_file_is_tried_once_and_never_as_the_last_one")
    else {
        return;
    };
    let tokens = fixture.faulty();
    let mut person = Person::who_answers(&[PIN]);
    let mut attempt =
        |pin: &str| open(&tokens, &wanted(Some(OFFICE)), file(pin), true, &mut person);
    refused(attempt("9999"), "the file of askpass is wrong");
    assert_eq!(fixture.store.logins(), ["1 9999"]);
    fixture.begin("final-try");
    refused(attempt(PIN), "was not tried: enter it by hand once");
    assert_eq!(fixture.store.logins(), ["1 9999"]);
    fixture.end("final-try");
    attempt(PIN).unwrap();
    assert!(person.asked.is_empty());
}

#[test]
fn the_pin_cannot_be_entered() {
    let Some(fixture) = Fixture::new("the_pin_cannot_be_entered") else { return };
    let tokens = fixture.plain();
    let opened = open(&tokens, &wanted(Some(OFFICE)), None, true, &mut Person::default());
    refused(opened, "add askpass FILE");
}

#[test]
fn a_person_is_asked_to_insert_the_token() {
    let Some(fixture) = Fixture::new("a_person_is_asked_to_insert_the_token") else { return };
    let tokens = fixture.plain();
    let home = "pkcs11:token=home;id=%02";
    let mut person = Person::who_answers(&["ok", "cancel"]);
    let opened = open(&tokens, &wanted(Some(home)), None, true, &mut person);
    refused(opened, "token 'home' is not there");
    assert_eq!(person.asked, ["insert home", "insert home"]);
    let mut endless = Person::who_answers(&["ok"; 20]);
    let opened = open(&tokens, &wanted(Some(home)), None, true, &mut endless);
    refused(opened, "token 'home' is not there");
    assert_eq!(endless.asked.len(), 10);
    let opened = open(&tokens, &wanted(Some(home)), None, true, &mut Person::default());
    refused(opened, "token 'home' is not there");
}

#[test]
fn no_certificate_or_several_may_fit() {
    let Some(fixture) = Fixture::new("no_certificate_or_several_may_fit") else { return };
    fixture.add("office", "03", "ec -pkeyopt ec_paramgen_curve:P-384", false);
    let tokens = fixture.plain();
    let mut person = Person::who_answers(&[PIN]);
    let mut attempt = |query| open(&tokens, &wanted(Some(query)), None, true, &mut person);
    refused(attempt("pkcs11:token=office"), "several certificates fit");
    refused(attempt("pkcs11:token=office;id=%09"), "no certificate fits");
    attempt("pkcs11:id=%03").unwrap();
}

#[test]
fn authorities_are_not_among_the_certificates() {
    let leaf = |at: u8| {
        let mut fields = rcgen::CertificateParams::new(vec![]).unwrap();
        fields.distinguished_name.push(rcgen::DnType::CommonName, format!("c{at}"));
        fields
    };
    let [ca_key, key] = [(); 2].map(|()| rcgen::KeyPair::generate().unwrap());
    let mut authority = leaf(0);
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let own = authority.self_signed(&ca_key).unwrap();
    let issuer = rcgen::Issuer::new(authority, ca_key);
    let issued = leaf(1).signed_by(&key, &issuer).unwrap();
    let alone = leaf(2).self_signed(&key).unwrap();
    let kept = |ders: &[&[u8]]| {
        let all = ders.iter().map(|der| Certificate::of_der(der)).collect();
        let kept: Vec<Vec<u8>> = leaves(all).into_iter().map(|found| found.der).collect();
        kept
    };
    let der = |certificate: &rcgen::Certificate| certificate.der().to_vec();
    let all = kept(&[own.der(), issued.der(), alone.der()]);
    assert_eq!(all, [der(&issued), der(&alone)]);
    assert_eq!(kept(&[own.der(), alone.der()]), [der(&own), der(&alone)]);
    // Twice the same is not an authority.
    assert_eq!(kept(&[alone.der(), alone.der()]).len(), 2);
}

#[test]
fn a_certificate_is_shown_as_openvpn_shows_it() {
    let mut fields = rcgen::CertificateParams::new(vec![]).unwrap();
    fields.serial_number = Some(rcgen::SerialNumber::from(vec![0x8f, 0x01]));
    fields.distinguished_name = rcgen::DistinguishedName::new();
    fields.distinguished_name.push(rcgen::DnType::CountryName, "DE");
    fields.distinguished_name.push(rcgen::DnType::OrganizationName, "Ex, Inc");
    fields.distinguished_name.push(rcgen::DnType::CommonName, "client 1");
    let certificate = fields.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
    let text = shown(&Certificate::of_der(certificate.der()));
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    assert_eq!(lines[1], "DN:             C=DE, O=Ex, Inc, CN=client 1");
    assert_eq!(lines[2], "Serial:         8F01");
    assert_eq!(lines[3], "Serialized id:  m/o/s/l/01");
}

#[test]
fn a_certificate_becomes_pem() {
    let text = pem(&[7; 100]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines.len(), lines[1].len()), (5, LINE));
    assert_eq!(lines[0], "-----BEGIN CERTIFICATE-----");
    assert_eq!(lines[4], "-----END CERTIFICATE-----");
}
