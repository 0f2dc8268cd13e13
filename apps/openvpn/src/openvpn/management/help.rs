//! The answer to `help`.

const COMMANDS: &[(&str, &str)] = &[
    ("auth-retry t", "What follows a refused password: none, interact or nointeract."),
    ("bytecount n", "Report the traffic every n seconds (0: never)."),
    ("client-auth CID KID", "Accept a client; options follow, up to a line END."),
    ("client-auth-nt CID KID", "Accept a client."),
    ("client-deny CID KID R [CR]", "Refuse a client: reason for the log, reason for the client."),
    ("client-kill CID [M]", "End the session CID; M is HALT or RESTART."),
    ("client-pending-auth CID KID MSG TIMEOUT", "Send a client a message, and give it more time."),
    ("cr-response response", "Answer the challenge of the server, in base64."),
    ("echo [on|off] [N|all]", "Echo texts: report new ones, show the last N or all."),
    ("env-filter [level]", "How many variables a client notification has."),
    ("exit|quit", "End this conversation."),
    ("forget-passwords", "Forget the passwords entered so far."),
    ("help", "This text."),
    ("hold [on|off|release]", "Show or set the hold flag, or end the wait."),
    ("kill cn", "End the sessions with this common name."),
    ("kill IP:port", "End the session from this address."),
    ("load-stats", "Show the number of clients and the traffic."),
    ("log [on|off] [N|all]", "Log lines: report new ones, show the last N or all."),
    ("mute [n]", "Show or set how many messages of one kind are logged in a row."),
    ("net", "On Windows: show interfaces and routes."),
    ("password type p", "Enter the password that is asked for."),
    ("pid", "Show the process id."),
    ("pkcs11-id-count", "Show the number of PKCS#11 identities."),
    ("pkcs11-id-get index", "Show a PKCS#11 identity."),
    ("proxy type [host port nct]", "Answer >PROXY: HTTP, SOCKS or NONE."),
    ("remote type [host port]", "Answer >REMOTE: ACCEPT, MOD or SKIP."),
    ("remote-entry-count", "Show the number of servers."),
    ("remote-entry-get i|all [j]", "Show the servers from i to j-1, or all."),
    ("signal s", "Send SIGHUP, SIGTERM, SIGUSR1 or SIGUSR2 to this process."),
    ("state [on|off] [N|all]", "States: report new ones, show the last N or all."),
    ("status [n]", "Show the status in format n."),
    ("test n", "Write n lines."),
    ("username type u", "Enter the user name that is asked for."),
    ("verb [n]", "Show or set the log level."),
    ("version [n]", "Show the versions, or set the client's to n."),
];

/// Returns the lines of the answer.
pub(super) fn lines(banner: &str) -> Vec<String> {
    let head = [format!("Management Interface for {banner}"), "Commands:".into()];
    let commands = COMMANDS.iter().map(|(usage, text)| format!("{usage:<26} : {text}"));
    head.into_iter().chain(commands).chain(["END".into()]).collect()
}
