use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use adit_engine::{Command, Family, Identity, Notice, PeerId, Transport, auth};
use adit_linux::poll::EventFd;
use adit_linux::tcp::{TcpListenOptions, TcpListener, TcpStream};
use adit_linux::udp::{RecvBatch, UdpOptions, UdpSocket};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

use super::*;
use crate::authorize::ResponseFuture;
use crate::control::{Request, Response, Server, StatusReport};
use crate::instance::{self, Controls, EndReason, Instance};
use crate::signals::Signals;
use crate::trivial::Trivial;

/// An engine that records its inputs and returns the outputs that the test queued.
#[derive(Default)]
struct Script {
    log: Vec<String>,
    on_input: VecDeque<Vec<Output<&'static str, Trivial>>>,
    deadline: Option<Instant>,
    /// The time that each input takes.
    slow: Duration,
}

impl Engine for Script {
    type Event = &'static str;
    type Format = Trivial;

    fn handle(
        &mut self,
        _: Instant,
        input: Input<'_, Trivial>,
        out: &mut Outbox<&'static str, Trivial>,
    ) {
        std::thread::sleep(self.slow);
        self.log.push(match input {
            Input::Tick => {
                self.deadline = None;
                "tick".into()
            }
            Input::ControlPacket(link, frame) => format!("frame {} {frame:?}", link.remote().ip()),
            Input::LinkUp(link) => format!("up {}", link.remote()),
            Input::DialFailed(why) => format!("failed {why}"),
            Input::LinkDown(link) => format!("down {}", link.remote()),
            Input::Notice(notice) => format!("{notice:?}"),
            Input::AuthResponse(ticket, reply) => {
                let word = match reply {
                    auth::Response::Accept(_) => "yes",
                    auth::Response::Pending { .. } => "later",
                    _ => "no",
                };
                format!("answer {} {word}", ticket.0)
            }
        });
        for output in self.on_input.pop_front().unwrap_or_default() {
            out.push(output);
        }
        out.event("fed");
    }

    fn deadline(&self) -> Option<(Instant, &'static str)> {
        self.deadline.map(|at| (at, "test"))
    }
}

/// A data plane that records its commands.
#[derive(Clone)]
struct Fake {
    wakeup: Rc<EventFd>,
    verbs: Rc<RefCell<Vec<String>>>,
    waiting: Rc<RefCell<Vec<Upcall<Trivial>>>>,
    streams: Rc<RefCell<BTreeMap<Link, TcpStream>>>,
    /// Whether each poll of the queues returns an upcall.
    flood: Rc<RefCell<bool>>,
    dead: Rc<RefCell<bool>>,
}

impl Fake {
    fn new() -> Self {
        Self {
            wakeup: Rc::new(EventFd::new().unwrap()),
            verbs: Rc::default(),
            waiting: Rc::default(),
            streams: Rc::default(),
            flood: Rc::default(),
            dead: Rc::default(),
        }
    }

    fn bring(&self, upcall: Upcall<Trivial>) {
        self.waiting.borrow_mut().push(upcall);
        self.wakeup.signal();
    }
}

impl Backend for Fake {
    type Format = Trivial;

    fn failure(&self) -> Option<Fault> {
        self.dead.borrow().then(|| Fault::ours("it died"))
    }
    fn apply(&self, op: Command<Trivial>) {
        self.verbs.borrow_mut().push(format!("{op:?}"));
    }
    fn add_socket(&self, id: SocketId, _: Arc<UdpSocket>) -> io::Result<()> {
        self.verbs.borrow_mut().push(format!("add {:x}", id.0));
        Ok(())
    }
    fn remove_socket(&self, id: SocketId) {
        self.verbs.borrow_mut().push(format!("remove {:x}", id.0));
    }
    fn add_stream(&self, link: Link, stream: TcpStream) -> io::Result<()> {
        let id = link.stream_id().unwrap();
        self.verbs.borrow_mut().push(format!("add stream {id}"));
        self.streams.borrow_mut().insert(link, stream);
        Ok(())
    }
    fn remove_stream(&self, link: Link) {
        if self.streams.borrow_mut().remove(&link).is_some() {
            self.verbs.borrow_mut().push(format!("remove stream {}", link.stream_id().unwrap()));
        }
    }
    fn send_control(&self, link: Link, frame: &[u8]) -> bool {
        let streams = self.streams.borrow();
        streams.get(&link).is_some_and(|stream| stream.send(frame).is_ok())
    }
    fn wakeup(&self) -> io::Result<OwnedFd> {
        use std::os::fd::AsFd;
        self.wakeup.as_fd().try_clone_to_owned()
    }
    fn drain(&mut self, sink: &mut dyn FnMut(Upcall<Trivial>)) {
        self.wakeup.drain();
        self.drain_silently(sink);
    }
    fn drain_silently(&mut self, sink: &mut dyn FnMut(Upcall<Trivial>)) {
        if *self.flood.borrow() {
            sink(Upcall::Notice(Notice::PeerSilent(PeerId(7))));
        }
        self.waiting.borrow_mut().drain(..).for_each(sink);
    }
}

struct SlowYes;

impl Authorizer for SlowYes {
    fn authorize(&self, _: Box<Identity>, _: PendingSender) -> ResponseFuture {
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            auth::Response::Accept(auth::ClientParams::default())
        })
    }
}

/// Extends the time, and accepts later.
struct PendingYes;

impl Authorizer for PendingYes {
    fn authorize(&self, _: Box<Identity>, pending: PendingSender) -> ResponseFuture {
        Box::pin(async move {
            tokio::task::yield_now().await;
            assert!(pending.send(Duration::from_secs(300), None));
            tokio::time::sleep(Duration::from_millis(10)).await;
            auth::Response::Accept(auth::ClientParams::default())
        })
    }
}

fn driver(script: Script, fake: &Fake) -> Driver<Script, Fake> {
    let sockets = Sockets::client(DialSettings::default());
    Driver::new(script, fake.clone(), sockets, Arc::new(SlowYes)).unwrap()
}

fn target(address: SocketAddr) -> Target {
    Target {
        host: address.ip().to_string(),
        port: address.port(),
        transport: Transport::Udp,
        family: Family::Any,
        ..Target::default()
    }
}

/// Runs until the engine has had `count` more inputs.
async fn fed(driver: &mut Driver<Script, Fake>, count: usize) {
    let wanted = driver.engine.log.len() + count;
    while driver.engine.log.len() < wanted {
        let next = tokio::time::timeout(Duration::from_secs(10), driver.next());
        next.await
            .unwrap_or_else(|_| panic!("waits for ever after {:?}", driver.engine.log))
            .unwrap();
    }
}

#[tokio::test]
async fn what_stands_behind_an_event_waits_until_the_event_was_taken() {
    let fake = Fake::new();
    let mut driver = driver(Script::default(), &fake);
    driver.act(|_, _, out| {
        out.plane(Command::SwapKeys(PeerId(1)));
        out.event("configure");
        out.plane(Command::DelPeer(PeerId(1)));
    });
    assert!(matches!(driver.next().await.unwrap(), Event::Engine("configure")));
    assert_eq!(*fake.verbs.borrow(), ["SwapKeys(PeerId(1))"]);
    assert!(driver.perform().is_none());
    assert_eq!(*fake.verbs.borrow(), ["SwapKeys(PeerId(1))", "DelPeer(PeerId(1))"]);
}

#[tokio::test]
async fn a_data_plane_that_died_ends_the_wait() {
    let fake = Fake::new();
    let mut driver = driver(Script::default(), &fake);
    let dying = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        *fake.dead.borrow_mut() = true;
        fake.wakeup.signal();
        std::future::pending::<()>().await;
    };
    let ended = tokio::select! {
        event = async { loop { if let Err(fault) = driver.next().await { break fault } } } => event,
        () = dying => unreachable!(),
        () = tokio::time::sleep(Duration::from_secs(10)) => panic!("it waits for ever"),
    };
    assert!(ended.to_string().contains("it died"), "{ended}");
}

#[tokio::test]
async fn a_dialled_socket_sends_and_is_closed_on_hangup() {
    let server = UdpSocket::bind(&UdpOptions::new("127.0.0.1:0".parse().unwrap())).unwrap();
    let remote = server.local_addr();
    let fake = Fake::new();
    let mut driver = driver(Script::default(), &fake);
    driver.act(|_, _, out| out.push(Output::Dial(target(remote))));
    let link = match driver.next().await.unwrap() {
        Event::Dialled(dialled) => dialled.link,
        other => panic!("{other:?}"),
    };
    assert_eq!(driver.engine.log, [format!("up {remote}")]);
    driver.act(|_, _, out| {
        out.send(link, b"hello".to_vec());
        out.push(Output::Hangup(link));
        out.send(link, b"too late".to_vec());
    });
    while driver.perform().is_some() {}
    let mut batch = RecvBatch::new(4);
    assert_eq!(server.recv_burst(&mut batch).unwrap(), 1);
    assert_eq!(batch.datagrams_mut().next().unwrap().data, b"hello");
    assert_eq!(*fake.verbs.borrow(), ["add 8000", "remove 8000"]);
}

/// Lets an attempt pass, to another target, when the test says so.
struct Held(Arc<tokio::sync::Notify>, Target);

impl DialGate for Held {
    fn decide(&self, _: &Target) -> Option<PassageFuture> {
        let (released, target) = (Arc::clone(&self.0), self.1.clone());
        Some(Box::pin(async move {
            released.notified().await;
            Passage { target, proxy: None }
        }))
    }
}

#[tokio::test]
async fn an_attempt_waits_at_the_gate_and_leads_where_the_gate_says() {
    let server = UdpSocket::bind(&UdpOptions::new("127.0.0.1:0".parse().unwrap())).unwrap();
    let (remote, released) = (server.local_addr(), Arc::new(tokio::sync::Notify::new()));
    let mut driver = driver(Script::default(), &Fake::new());
    driver.set_gate(Arc::new(Held(Arc::clone(&released), target(remote))));
    let elsewhere = target("192.0.2.1:1".parse().unwrap());
    let dial = |driver: &mut Driver<Script, Fake>| {
        driver.act(|_, _, out| out.push(Output::Dial(elsewhere.clone())));
    };
    dial(&mut driver);
    let waits = tokio::time::timeout(Duration::from_millis(50), driver.next()).await;
    assert!(waits.is_err(), "{waits:?}");
    // A second attempt replaces the first one, whose release must not count for it.
    dial(&mut driver);
    assert!(driver.perform().is_none());
    released.notify_one();
    match driver.next().await.unwrap() {
        Event::Dialled(dialled) => assert_eq!(dialled.link.remote(), remote),
        other => panic!("{other:?}"),
    }
    let more = tokio::time::timeout(Duration::from_millis(50), driver.next()).await;
    assert!(matches!(more, Ok(Ok(Event::Engine("fed")))), "{more:?}");
    assert_eq!(driver.engine.log, [format!("up {remote}")]);
}

#[test]
fn a_socket_gets_an_id_that_no_open_socket_has() {
    let (mut sockets, fake) = (Sockets::default(), Fake::new());
    let options = UdpOptions::new(([127, 0, 0, 1], 0).into());
    let first = sockets.open(&options, 2, &fake);
    assert_eq!(first, [SocketId(0x8000), SocketId(0x8001)]);
    sockets.hang_up(first[0], &fake);
    sockets.skip_to(0x7ffe);
    let after = sockets.open(&options, 3, &fake);
    assert_eq!(after, [SocketId(0xfffe), SocketId(0x8000), SocketId(0x8002)]);
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_an_event_and_an_input() {
    let fake = Fake::new();
    let settings = DialSettings { resolve_retry: ResolveRetry::Once, ..DialSettings::default() };
    let sockets = Sockets::client(settings);
    let mut driver = Driver::new(Script::default(), fake, sockets, Arc::new(SlowYes)).unwrap();
    let mut nowhere = target("192.0.2.1:1".parse().unwrap());
    nowhere.family = Family::V6;
    driver.act(|_, _, out| out.push(Output::Dial(nowhere)));
    assert!(matches!(driver.next().await.unwrap(), Event::DialFailed(_)));
    assert!(driver.engine.log[0].starts_with("failed RESOLVE"), "{:?}", driver.engine.log);
}

#[tokio::test]
async fn frames_notices_ticks_and_answers_reach_the_engine() {
    let fake = Fake::new();
    let mut driver = driver(Script::default(), &fake);
    let link = Link::datagram(SocketId(0), None, "192.0.2.9:5".parse().unwrap());
    fake.bring(Upcall::ControlPacket(link, vec![1, 2]));
    fake.bring(Upcall::Notice(Notice::PeerSilent(PeerId(7))));
    fed(&mut driver, 2).await;
    driver.engine.deadline = Some(now() + Duration::from_millis(5));
    fed(&mut driver, 1).await;
    driver.act(|_, _, out| {
        out.push(Output::AuthRequest(auth::RequestId(3), auth::Request::Authorize(Box::default())));
    });
    fed(&mut driver, 1).await;
    let expected = ["frame 192.0.2.9 [1, 2]", "PeerSilent(PeerId(7))", "tick", "answer 3 yes"];
    assert_eq!(driver.engine.log, expected);
}

#[tokio::test]
async fn a_pending_answer_leaves_its_question_open() {
    let fake = Fake::new();
    let sockets = Sockets::client(DialSettings::default());
    let mut driver =
        Driver::new(Script::default(), fake.clone(), sockets, Arc::new(PendingYes)).unwrap();
    driver.act(|_, _, out| {
        let request = auth::Request::Authorize(Box::default());
        out.push(Output::AuthRequest(auth::RequestId(3), request));
    });
    fed(&mut driver, 1).await;
    assert_eq!(
        (driver.engine.log.as_slice(), driver.open_questions.len()),
        (&["answer 3 later".to_owned()][..], 1)
    );
    fed(&mut driver, 1).await;
    assert_eq!((driver.engine.log[1].as_str(), driver.open_questions.len()), ("answer 3 yes", 0));
    let mut samples = Samples::default();
    driver.measure(&mut samples);
    let text = samples.text();
    for line in [
        "adit_auth_requests_total{kind=\"authorize\",result=\"accepted\"} 1\n",
        "adit_auth_duration_seconds_count{kind=\"authorize\"} 1\n",
        "adit_queue_length{queue=\"auth-requests\"} 0\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[tokio::test]
async fn too_many_open_questions_are_answered_no() {
    let fake = Fake::new();
    let mut driver = driver(Script::default(), &fake);
    let open = (100..).take(QUESTION_LIMIT).map(|id| (auth::RequestId(id), ("authorize", now())));
    driver.open_questions = open.collect();
    driver.act(|_, _, out| {
        out.push(Output::AuthRequest(auth::RequestId(3), auth::Request::Authorize(Box::default())));
    });
    assert!(matches!(driver.next().await.unwrap(), Event::Engine("fed")));
    assert_eq!(driver.engine.log, ["answer 3 no"]);
}

#[tokio::test]
async fn a_deadline_is_kept_under_a_flood_of_packets() {
    let fake = Fake::new();
    let mut driver = driver(Script::default(), &fake);
    let link = Link::datagram(SocketId(0), None, "192.0.2.9:5".parse().unwrap());
    for _ in 0..100 {
        fake.bring(Upcall::ControlPacket(link, vec![0]));
    }
    driver.engine.deadline = Some(Instant::from_nanos(1));
    fed(&mut driver, 1).await;
    assert_eq!(driver.engine.log, ["tick"]);
    // The packets are processed after the tick.
    fed(&mut driver, 100).await;
    assert_eq!(driver.engine.log.len(), 101);
}

#[tokio::test]
async fn answers_and_connections_have_their_turn_however_much_the_plane_has_to_say() {
    let fake = Fake::new();
    let listener = listening();
    let address = listener.local_addr();
    let sockets = Sockets::server([]).with_streams(vec![listener]);
    let mut driver =
        Driver::new(Script::default(), fake.clone(), sockets, Arc::new(SlowYes)).unwrap();
    *fake.flood.borrow_mut() = true;
    fake.wakeup.signal();
    fed(&mut driver, 2 * LOOKS as usize).await;
    driver.act(|_, _, out| {
        out.push(Output::AuthRequest(auth::RequestId(3), auth::Request::Authorize(Box::default())));
    });
    let client = std::net::TcpStream::connect(address).unwrap();
    let up = format!("up {}", client.local_addr().unwrap());
    let heard = async {
        while ["answer 3 yes", &up]
            .iter()
            .any(|wanted| !driver.engine.log.iter().any(|had| had == wanted))
        {
            driver.engine.log.retain(|had| !had.starts_with("PeerSilent"));
            fed(&mut driver, 100).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), heard).await.expect("both are heard");
}

#[tokio::test]
async fn what_comes_while_we_are_awake_needs_no_second_call() {
    let fake = Fake::new();
    let mut driver = driver(Script::default(), &fake);
    let notice = |id| Upcall::Notice(Notice::PeerSilent(PeerId(id)));
    fake.bring(notice(1));
    fed(&mut driver, 1).await;
    // An upcall arrives without a signal.
    fake.waiting.borrow_mut().push(notice(2));
    fed(&mut driver, 1).await;
    let silent = tokio::time::timeout(Duration::from_millis(50), driver.next()).await;
    assert!(silent.is_err(), "nothing more comes");
    assert!(!driver.called);
    fake.bring(notice(3));
    fed(&mut driver, 1).await;
    assert_eq!(driver.engine.log.len(), 3);
}

#[test]
fn what_cannot_be_bound_is_a_sentence_with_a_remedy() {
    let taken = UdpSocket::bind(&UdpOptions::new("127.0.0.1:0".parse().unwrap())).unwrap();
    let problem = |address: SocketAddr| {
        bind_problem(
            Transport::Udp,
            address,
            None,
            &UdpSocket::bind(&UdpOptions::new(address)).unwrap_err(),
        )
    };
    let busy = problem(taken.local_addr());
    assert!(busy.contains("in use by another program: stop that (`ss -ulpn"), "{busy}");
    let foreign = problem("192.0.2.1:0".parse().unwrap());
    assert!(foreign.contains("not an address of this machine: `ip addr`"), "{foreign}");
}

fn listening() -> TcpListener {
    TcpListener::bind(&TcpListenOptions::new("127.0.0.1:0".parse().unwrap())).unwrap()
}

#[tokio::test]
async fn an_accepted_stream_is_the_planes_before_the_engine_hears_of_it() {
    let fake = Fake::new();
    let listener = listening();
    let address = listener.local_addr();
    let sockets = Sockets::server([]).with_streams(vec![listener]);
    assert_eq!(sockets.endpoints()[0].to_string(), format!("tcp {address}"));
    let mut driver =
        Driver::new(Script::default(), fake.clone(), sockets, Arc::new(SlowYes)).unwrap();
    let client = std::net::TcpStream::connect(address).unwrap();
    fed(&mut driver, 1).await;
    let peer = client.local_addr().unwrap();
    assert_eq!(driver.engine.log, [format!("up {peer}")]);
    assert_eq!(*fake.verbs.borrow(), ["add stream 1"]);
    let link = Link::stream(1, peer);
    driver.act(|_, _, out| {
        out.send(link, b"hello".to_vec());
        out.push(Output::Hangup(link));
    });
    while driver.perform().is_some() {}
    let mut said = Vec::new();
    io::Read::read_to_end(&mut { client }, &mut said).unwrap();
    assert_eq!(said, b"hello");
    assert_eq!(*fake.verbs.borrow(), ["add stream 1", "remove stream 1"]);
}

#[tokio::test]
async fn a_stream_is_dialled_after_the_caller_has_heard_where() {
    let listener = listening();
    let address = listener.local_addr();
    let fake = Fake::new();
    let mut driver = driver(Script::default(), &fake);
    let target = Target { transport: Transport::Tcp, ..target(address) };
    driver.act(|_, _, out| out.push(Output::Dial(target)));
    let first = driver.next().await.unwrap();
    assert!(matches!(first, Event::Dialling(to) if to == address), "{first:?}");
    assert!(listener.accept().is_err(), "nothing was sent yet");
    let next = tokio::time::timeout(Duration::from_secs(10), driver.next()).await;
    let Event::Dialled(dialled) = next.expect("it connects").unwrap() else { panic!("dialled") };
    assert!(dialled.link.is_stream() && !dialled.bound);
    assert_eq!(driver.engine.log, [format!("up {address}")]);
    assert_eq!(listener.accept().unwrap().1, dialled.local);
}

#[tokio::test]
async fn a_stream_without_room_or_at_its_end_is_a_link_that_went_down() {
    let fake = Fake::new();
    let mut driver = driver(Script::default(), &fake);
    let link = Link::stream(7, "192.0.2.9:5".parse().unwrap());
    // The data plane does not know the stream.
    driver.act(|_, _, out| out.send(link, b"hello".to_vec()));
    while driver.perform().is_some() {}
    assert_eq!(driver.engine.log, ["down 192.0.2.9:5"]);
    assert_eq!(driver.send_errors().full, 1);
    fake.bring(Upcall::StreamEnded(link, "the peer closed the connection".into()));
    fed(&mut driver, 1).await;
    assert_eq!(driver.engine.log.len(), 2);
}

#[tokio::test]
async fn another_dial_gives_up_the_one_under_way() {
    let listener = listening();
    let address = listener.local_addr();
    let fake = Fake::new();
    let mut driver = driver(Script::default(), &fake);
    let tcp = Target { transport: Transport::Tcp, ..target(address) };
    driver.act(|_, _, out| out.push(Output::Dial(tcp)));
    assert!(matches!(driver.next().await.unwrap(), Event::Dialling(_)));
    driver.act(|_, _, out| out.push(Output::Dial(target(address))));
    assert!(matches!(driver.next().await.unwrap(), Event::Dialled(d) if !d.link.is_stream()));
    fed(&mut driver, 0).await;
    assert!(listener.accept().is_err());
    assert_eq!(*fake.verbs.borrow(), ["add 8000"]);
}

/// A program with nothing but a driver.
struct Busy(Driver<Script, Fake>);

impl Instance for Busy {
    type Event = Event<&'static str>;
    type Reason = ();

    fn role(&self) -> &'static str {
        "busy"
    }

    async fn next(&mut self) -> Result<Self::Event, Fault> {
        self.0.next().await
    }

    async fn handle(&mut self, _: Self::Event) -> Result<Option<EndReason<()>>, Fault> {
        Ok(None)
    }

    async fn tick(&mut self) -> Result<Option<EndReason<()>>, Fault> {
        Ok(None)
    }

    fn reload(&mut self) -> bool {
        true
    }

    fn request(&mut self, _: Request) -> Response {
        Response::Done { count: 0 }
    }

    fn report(&mut self, _: &mut StatusReport) {}
}

#[tokio::test]
async fn a_request_on_the_control_socket_is_answered_while_many_slow_packets_wait() {
    const PACKETS: u32 = 2000;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("one.sock");
    let mut controls = Controls {
        signals: Signals::none(),
        socket: Some(Server::open(&path).unwrap()),
        notifier: None,
        metrics: None,
    };
    let fake = Fake::new();
    let notices = (0..PACKETS).map(|n| Upcall::Notice(Notice::PeerSilent(PeerId(n))));
    fake.waiting.borrow_mut().extend(notices);
    fake.wakeup.signal();
    let script = Script { slow: Duration::from_millis(1), ..Script::default() };
    let mut busy = Busy(driver(script, &fake));
    // A task on the same thread. It runs only when the program lets it.
    let asked = tokio::spawn(async move {
        let mut stream = tokio::net::UnixStream::connect(&path).await.unwrap();
        let mut requests = serde_json::to_vec(&Request::Status).unwrap();
        requests.push(b'\n');
        requests.extend(serde_json::to_vec(&Request::Stop).unwrap());
        requests.push(b'\n');
        stream.write_all(&requests).await.unwrap();
        let mut answer = String::new();
        tokio::io::BufReader::new(stream).read_line(&mut answer).await.unwrap();
        answer
    });
    assert_eq!(instance::run(&mut busy, &mut controls).await, Ok(EndReason::Asked));
    let answer = asked.await.unwrap();
    assert!(answer.contains("\"role\":\"busy\""), "{answer}");
    let handled = busy.0.engine.log.len();
    assert!((1..PACKETS as usize / 2).contains(&handled), "after {handled} packets");
}
