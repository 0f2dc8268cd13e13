use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Instant as StdInstant;

use tokio::net::UdpSocket;

use super::*;

/// The port of every test; nothing listens on it.
const PORT: NonZeroU16 = NonZeroU16::new(1194).unwrap();

/// The gateway's address on the other side.
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);

/// The time limit for waits for events that should happen.
const SOON: Duration = Duration::from_secs(20);

/// Intervals so short that every deadline occurs during a test.
fn quick() -> Timing {
    let transmissions = TimeoutConfig {
        initial_timeout: Duration::from_millis(400),
        max_retries: 1,
        max_retry_timeout: None,
    };
    Timing {
        lifetime: 1200,
        shortest_renewal: Duration::from_millis(50),
        first_retry: Duration::from_millis(50),
        longest_retry: Duration::from_millis(200),
        request: transmissions,
        deletion: transmissions,
    }
}

/// The gateway's answer to the requests of one protocol.
#[derive(Clone, Copy, PartialEq)]
enum Answer {
    Map,
    /// The result code UNSUPP_VERSION, in the format of NAT-PMP.
    UnsupportedVersion,
    /// The result code NOT_AUTHORIZED.
    Refuse,
    None,
}

/// The gateway's behaviour. A test may change it.
#[derive(Clone, Copy)]
struct Behaviour {
    pcp: Answer,
    natpmp: Answer,
    lifetime: u32,
    external: Ipv4Addr,
    external_port: u16,
}

impl Default for Behaviour {
    fn default() -> Self {
        let external_port = 40001;
        let (pcp, natpmp) = (Answer::Map, Answer::Map);
        Self { pcp, natpmp, lifetime: 1200, external: OUTSIDE, external_port }
    }
}

/// A request that the gateway received.
#[derive(Clone, Debug, PartialEq)]
enum Request {
    Pcp { nonce: Vec<u8>, port: u16, suggested: u16, lifetime: u32 },
    ExternalAddress,
    NatPmp { port: u16, suggested: u16, lifetime: u32 },
}

impl Request {
    fn lifetime(&self) -> Option<u32> {
        match self {
            Self::Pcp { lifetime, .. } | Self::NatPmp { lifetime, .. } => Some(*lifetime),
            Self::ExternalAddress => None,
        }
    }

    /// Returns whether it is a request to delete a mapping.
    fn deletes(&self) -> bool {
        self.lifetime() == Some(0)
    }
}

/// A gateway at an address of its own on the loopback interface.
struct FakeGateway {
    gateway: Gateway,
    behaviour: Arc<Mutex<Behaviour>>,
    requests: Arc<Mutex<Vec<(StdInstant, Request)>>>,
    task: JoinHandle<()>,
}

impl Drop for FakeGateway {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FakeGateway {
    async fn start(behaviour: Behaviour) -> Self {
        // The port is fixed, so tests that run at the same time use different addresses.
        let (address, socket) = loop {
            let [a, b, c] = adit_runtime::random::bytes().unwrap();
            let address = Ipv4Addr::new(127, a, b, c.clamp(2, 254));
            if let Ok(socket) = UdpSocket::bind((address, crab_nat::GATEWAY_PORT)).await {
                break (address, socket);
            }
        };
        let behaviour = Arc::new(Mutex::new(behaviour));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (now, log) = (behaviour.clone(), requests.clone());
        let task = tokio::spawn(async move {
            let mut bytes = [0; 1100];
            loop {
                let Ok((length, from)) = socket.recv_from(&mut bytes).await else { return };
                let request = parse(&bytes[..length], from);
                let reply = reply(&bytes[..length], &request, *now.lock().unwrap());
                log.lock().unwrap().push((StdInstant::now(), request));
                if let Some(reply) = reply {
                    socket.send_to(&reply, from).await.unwrap();
                }
            }
        });
        let gateway = Gateway::new(address).unwrap();
        Self { gateway, behaviour, requests, task }
    }

    fn set(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.behaviour.lock().unwrap());
    }

    fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().iter().map(|(_, request)| request.clone()).collect()
    }

    /// Waits until the requests satisfy a condition, and returns them.
    async fn wait_for(&self, condition: impl Fn(&[Request]) -> bool) -> Vec<Request> {
        let satisfied = async {
            loop {
                let requests = self.requests();
                if condition(&requests) {
                    return requests;
                }
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(SOON, satisfied)
            .await
            .unwrap_or_else(|_| panic!("requests so far: {:?}", self.requests()))
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn parse(bytes: &[u8], from: SocketAddr) -> Request {
    match (bytes[0], bytes[1]) {
        (2, 1) => {
            assert_eq!(bytes.len(), 60);
            let SocketAddr::V4(from) = from else { panic!("{from}") };
            assert_eq!(bytes[8..24], from.ip().to_ipv6_mapped().octets(), "the client's address");
            assert_eq!(bytes[36], 17, "UDP");
            Request::Pcp {
                nonce: bytes[24..36].to_vec(),
                port: u16_at(bytes, 40),
                suggested: u16_at(bytes, 42),
                lifetime: u32_at(bytes, 4),
            }
        }
        (0, 0) => Request::ExternalAddress,
        (0, 1) => Request::NatPmp {
            port: u16_at(bytes, 4),
            suggested: u16_at(bytes, 6),
            lifetime: u32_at(bytes, 8),
        },
        other => panic!("a request of version and opcode {other:?}"),
    }
}

fn reply(bytes: &[u8], request: &Request, behaviour: Behaviour) -> Option<Vec<u8>> {
    let is_pcp = matches!(request, Request::Pcp { .. });
    let answer = if is_pcp { behaviour.pcp } else { behaviour.natpmp };
    let code = match answer {
        Answer::Map => 0,
        Answer::UnsupportedVersion => return Some([&[0, 128, 0, 1][..], &[0; 4]].concat()),
        Answer::Refuse => 2,
        Answer::None => return None,
    };
    let granted = request.lifetime().map(|wanted| wanted.min(behaviour.lifetime));
    let granted = granted.unwrap_or_default().to_be_bytes();
    let port = if request.deletes() { 0 } else { behaviour.external_port };
    let port = port.to_be_bytes();
    let epoch = [0, 0, 0, 9];
    Some(match request {
        Request::Pcp { .. } => {
            let head = [&[2, 129, 0, code][..], &granted, &epoch, &[0; 12]].concat();
            let external = behaviour.external.to_ipv6_mapped().octets();
            [&head, &bytes[24..42], &port, &external].concat()
        }
        Request::ExternalAddress => {
            [&[0, 128, 0, code][..], &epoch, &behaviour.external.octets()].concat()
        }
        Request::NatPmp { .. } => {
            [&[0, 129, 0, code][..], &epoch, &bytes[4..6], &port, &granted].concat()
        }
    })
}

/// Mappings without the machine's own default gateways.
fn mappings(timing: Timing) -> (Mappings, watch::Receiver<ExternalAddresses>) {
    let (external, receiver) = watch::channel(ExternalAddresses::new());
    (Mappings::new(PORT, timing, external), receiver)
}

/// Waits until the external addresses are these.
async fn expect(external: &mut watch::Receiver<ExternalAddresses>, addresses: &[SocketAddr]) {
    let are = |now: &ExternalAddresses| now.values().copied().eq(addresses.iter().copied());
    let reached = timeout(SOON, external.wait_for(are)).await.is_ok();
    assert!(reached, "expected {addresses:?}, have {:?}", external.borrow());
}

fn outside(port: u16) -> SocketAddr {
    (OUTSIDE, port).into()
}

#[tokio::test]
async fn pcp_maps_the_port_and_deletes_the_mapping_at_the_end() {
    let router = FakeGateway::start(Behaviour::default()).await;
    let (mut mappings, mut external) = mappings(quick());
    mappings.set_gateways(&BTreeSet::from([router.gateway]));
    expect(&mut external, &[outside(40001)]).await;
    mappings.release().await;
    assert!(external.borrow().is_empty());
    let requests = router.requests();
    let [Request::Pcp { nonce, port: 1194, suggested: 1194, lifetime: 1200 }, rest @ ..] =
        &requests[..]
    else {
        panic!("{requests:?}")
    };
    let nonce = nonce.clone();
    let deletion = Request::Pcp { nonce, port: 1194, suggested: 0, lifetime: 0 };
    assert_eq!(rest, [deletion]);
}

#[tokio::test]
async fn a_lease_is_renewed_at_half_its_lifetime_and_keeps_its_address() {
    let router = FakeGateway::start(Behaviour { lifetime: 3, ..Behaviour::default() }).await;
    let (mut mappings, mut external) = mappings(quick());
    mappings.set_gateways(&BTreeSet::from([router.gateway]));
    expect(&mut external, &[outside(40001)]).await;
    let requests = router.wait_for(|requests| requests.len() >= 3).await;
    let times: Vec<_> = router.requests.lock().unwrap().iter().map(|(at, _)| *at).collect();
    let gap = times[1] - times[0];
    let half = Duration::from_millis(1500);
    assert!(gap >= half && gap < half * 2, "renewed after {gap:?} of 3 s");
    let [Request::Pcp { nonce: first, .. }, renewals @ ..] = &requests[..] else {
        panic!("{requests:?}")
    };
    for renewal in renewals {
        let Request::Pcp { nonce, port: 1194, suggested: 40001, .. } = renewal else {
            panic!("{renewal:?}")
        };
        assert_eq!(nonce, first, "the gateway would see another client");
    }
    // The router's own address changes.
    router.set(|behaviour| behaviour.external_port = 40077);
    expect(&mut external, &[outside(40077)]).await;
}

#[tokio::test]
async fn nat_pmp_follows_a_pcp_request_without_answer() {
    let behaviour = Behaviour { pcp: Answer::None, ..Behaviour::default() };
    let router = FakeGateway::start(behaviour).await;
    let (mut mappings, mut external) = mappings(quick());
    mappings.set_gateways(&BTreeSet::from([router.gateway]));
    expect(&mut external, &[outside(40001)]).await;
    mappings.release().await;
    let mut requests = router.requests();
    requests.retain(|request| !matches!(request, Request::Pcp { .. }));
    let map = Request::NatPmp { port: 1194, suggested: 1194, lifetime: 1200 };
    let deletion = Request::NatPmp { port: 1194, suggested: 0, lifetime: 0 };
    assert_eq!(requests, [map, Request::ExternalAddress, deletion]);
}

#[tokio::test]
async fn nat_pmp_follows_a_pcp_request_that_is_refused() {
    for pcp in [Answer::UnsupportedVersion, Answer::Refuse] {
        let router = FakeGateway::start(Behaviour { pcp, ..Behaviour::default() }).await;
        let (mut mappings, mut external) = mappings(quick());
        mappings.set_gateways(&BTreeSet::from([router.gateway]));
        expect(&mut external, &[outside(40001)]).await;
        // One PCP request is enough, because it was answered.
        let pcp_requests =
            router.requests().iter().filter(|r| matches!(r, Request::Pcp { .. })).count();
        assert_eq!(pcp_requests, 1);
    }
}

#[tokio::test]
async fn retries_come_at_growing_intervals_until_the_gateway_answers() {
    let behaviour =
        Behaviour { pcp: Answer::Refuse, natpmp: Answer::Refuse, ..Behaviour::default() };
    let router = FakeGateway::start(behaviour).await;
    let (mut mappings, mut external) = mappings(quick());
    mappings.set_gateways(&BTreeSet::from([router.gateway]));
    // Each attempt is a PCP and a NAT-PMP request.
    router.wait_for(|requests| requests.len() >= 10).await;
    assert!(external.borrow().is_empty());
    let times: Vec<_> = router.requests.lock().unwrap().iter().map(|(at, _)| *at).collect();
    let attempts: Vec<_> = times.iter().step_by(2).collect();
    for (pair, at_least) in attempts.windows(2).zip([50, 100, 200, 200]) {
        let gap = *pair[1] - *pair[0];
        assert!(gap >= Duration::from_millis(at_least), "{gap:?} instead of {at_least} ms");
    }
    router.set(|behaviour| behaviour.pcp = Answer::Map);
    expect(&mut external, &[outside(40001)]).await;
}

#[test]
fn retries_are_at_most_an_hour_apart() {
    let timing = Timing::default();
    let pauses =
        std::iter::successors(Some(timing.first_retry), |pause| Some(timing.next_retry(*pause)));
    let seconds: Vec<u64> = pauses.take(9).map(|pause| pause.as_secs()).collect();
    assert_eq!(seconds, [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]);
}

#[tokio::test]
async fn an_expired_lease_is_withdrawn() {
    let router = FakeGateway::start(Behaviour { lifetime: 1, ..Behaviour::default() }).await;
    let (mut mappings, mut external) = mappings(quick());
    mappings.set_gateways(&BTreeSet::from([router.gateway]));
    expect(&mut external, &[outside(40001)]).await;
    router.set(|behaviour| (behaviour.pcp, behaviour.natpmp) = (Answer::None, Answer::None));
    expect(&mut external, &[]).await;
    router.set(|behaviour| behaviour.pcp = Answer::Map);
    expect(&mut external, &[outside(40001)]).await;
}

#[tokio::test]
async fn another_default_gateway_replaces_the_former_one() {
    let first = FakeGateway::start(Behaviour::default()).await;
    let second =
        FakeGateway::start(Behaviour { external_port: 40002, ..Behaviour::default() }).await;
    let (mut mappings, mut external) = mappings(quick());
    mappings.set_gateways(&BTreeSet::from([first.gateway]));
    expect(&mut external, &[outside(40001)]).await;
    mappings.set_gateways(&BTreeSet::from([first.gateway]));
    mappings.set_gateways(&BTreeSet::from([second.gateway]));
    expect(&mut external, &[outside(40002)]).await;
    let requests = first.wait_for(|requests| requests.iter().any(Request::deletes)).await;
    assert_eq!(requests.len(), 2, "the same gateways again change nothing: {requests:?}");
    // Both mappings exist at once, ordered by the gateways' addresses.
    mappings.set_gateways(&BTreeSet::from([first.gateway, second.gateway]));
    let mut both = [(first.gateway, outside(40001)), (second.gateway, outside(40002))];
    both.sort();
    expect(&mut external, &both.map(|(_, address)| address)).await;
}

#[tokio::test]
async fn answers_without_use_are_not_reported() {
    let unspecified = Behaviour { external: Ipv4Addr::UNSPECIFIED, ..Behaviour::default() };
    let no_lifetime = Behaviour { lifetime: 0, ..Behaviour::default() };
    let no_port = Behaviour { external_port: 0, ..Behaviour::default() };
    for behaviour in [unspecified, no_lifetime, no_port] {
        let router = FakeGateway::start(behaviour).await;
        let (mut mappings, external) = mappings(quick());
        mappings.set_gateways(&BTreeSet::from([router.gateway]));
        // The second attempt shows that the first answer was not used.
        let attempts = |requests: &[Request]| {
            requests.iter().filter(|r| matches!(r, Request::Pcp { .. })).count()
        };
        router.wait_for(|requests| attempts(requests) >= 2).await;
        assert!(external.borrow().is_empty());
    }
}

#[tokio::test]
async fn a_dropped_port_mapping_deletes_its_mapping() {
    let router = FakeGateway::start(Behaviour::default()).await;
    let gateways = stream::iter([BTreeSet::from([router.gateway])]);
    let mut mapping = PortMapping::start_at(gateways, PORT, quick());
    expect(&mut mapping.external, &[outside(40001)]).await;
    assert_eq!(mapping.external_addresses(), [outside(40001)]);
    drop(mapping);
    router.wait_for(|requests| requests.iter().any(Request::deletes)).await;
}

#[tokio::test]
async fn a_released_port_mapping_is_deleted_before_the_end() {
    let router = FakeGateway::start(Behaviour::default()).await;
    let gateways = stream::iter([BTreeSet::from([router.gateway])]);
    let mut mapping = PortMapping::start_at(gateways, PORT, quick());
    expect(&mut mapping.external, &[outside(40001)]).await;
    assert_eq!(mapping.external_addresses(), [outside(40001)]);
    mapping.release().await;
    assert!(router.requests().iter().any(Request::deletes));
}
