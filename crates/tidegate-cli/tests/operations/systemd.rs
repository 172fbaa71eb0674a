//! The systemd units and the notifications to systemd.

use std::os::unix::net::UnixDatagram;
use std::process::Command;

use crate::packaging::is_command;
use crate::{at_root, output_text, read, run_if_there};
use testkit::server::{ServerProcess, TEST_TIMEOUT, TempFolder, tidegate_path};

/// Optional settings next to the policy.
const DROP_INS: [&str; 2] = ["tokens.conf", "tls.conf"];

/// The unit and its drop-ins, with the built binary instead of the installed one.
fn installed() -> TempFolder {
    let folder = TempFolder::new();
    let unit = read("packaging/systemd/tidegate.service");
    assert!(unit.contains("ExecStart=/usr/bin/tidegate serve "));
    let unit = unit.replace("/usr/bin/tidegate", env!("CARGO_BIN_EXE_tidegate"));
    folder.write("tidegate.service", &unit);
    folder.write("tidegate.socket", &read("packaging/systemd/tidegate.socket"));
    std::fs::create_dir_all(folder.path("tidegate.service.d")).unwrap();
    for name in DROP_INS {
        let to = folder.path("tidegate.service.d").join(name);
        std::fs::copy(at_root("packaging/systemd").join(name), to).unwrap();
    }
    folder
}

/// Value of the last line with `setting`.
fn setting<'a>(file: &'a str, setting: &str) -> &'a str {
    let start = format!("{setting}=");
    file.lines().rev().find_map(|line| line.strip_prefix(&start)).expect(setting).trim_matches('"')
}

/// Installing one drop-in keeps the settings of the others.
#[test]
fn every_drop_in_and_the_flags_file_have_their_own_variable() {
    let unit = read("packaging/systemd/tidegate.service");
    let start = setting(&unit, "ExecStart").strip_prefix("/usr/bin/tidegate ").unwrap();
    let [tokens, tls] = DROP_INS.map(|name| read(&format!("packaging/systemd/{name}")));
    let given = [
        setting(&tokens, "Environment"),
        setting(&tls, "Environment"),
        "TIDEGATE_FLAGS=--store redis://127.0.0.1:6379 --resp-idle 5min",
    ];
    let unset = setting(&unit, "Environment");
    for used in 0..1 << given.len() {
        let mut words = Vec::new();
        for word in start.split(' ') {
            let Some(name) = word.strip_prefix('$') else {
                words.push(word.to_string());
                continue;
            };
            assert!(unset.split(' ').any(|one| one == format!("{name}=")), "{name}: {unset}");
            let mut values = given.iter().enumerate().filter_map(|(nth, given)| {
                let value = given.strip_prefix(name)?.strip_prefix('=')?;
                Some(if used >> nth & 1 == 1 { value } else { "" })
            });
            let value = values.next().expect("the variable is set");
            assert!(values.next().is_none(), "{name} is set by two");
            words.extend(value.split_whitespace().map(str::to_string));
        }
        is_command(&words);
        let wanted: usize =
            [6, 4, 4].iter().enumerate().map(|(n, len)| (used >> n & 1) * len).sum();
        assert_eq!(words.len(), 3 + wanted, "{words:?}");
    }
}

#[test]
fn systemd_accepts_the_unit() {
    let folder = installed();
    let paths = ["tidegate.service", "tidegate.socket"].map(|name| folder.path(name));
    let [service, socket] = paths.each_ref().map(|path| path.to_str().unwrap());
    let arguments = ["verify", "--man=no", "--recursive-errors=no", service, socket];
    if let Some(output) = run_if_there("systemd-analyze", &arguments, &folder.path("")) {
        let text = output_text(&output);
        assert!(output.status.success(), "{text}");
        assert!(!text.contains("tidegate.s"), "{text}");
    }
}

/// The addresses of the sockets are those on which `serve` listens without a flag.
#[test]
fn the_sockets_have_the_addresses_of_the_listeners() {
    let unit = read("packaging/systemd/tidegate.socket");
    let sockets: Vec<_> =
        unit.lines().filter_map(|line| line.strip_prefix("ListenStream=")).collect();
    let help = Command::new(tidegate_path()).args(["serve", "--help"]).output().unwrap();
    let help = output_text(&help);
    let default = |flag: &str| {
        let (_, rest) = help.split_once(&format!("{flag} <")).expect(flag);
        let (_, rest) = rest.split_once("[default: ").expect(flag);
        rest.split_once(']').unwrap().0
    };
    assert_eq!(sockets, ["--http", "--grpc", "--resp"].map(default));
}

#[test]
fn the_unit_is_sandboxed() {
    let folder = installed();
    let path = folder.path("tidegate.service");
    // The threshold is ten times the exposure, which goes from 0 to 10.
    let arguments = ["security", "--offline=yes", "--threshold=15", path.to_str().unwrap()];
    if let Some(output) = run_if_there("systemd-analyze", &arguments, &folder.path("")) {
        assert!(output.status.success(), "{}", output_text(&output));
    }
}

#[test]
fn systemd_is_notified_of_ready_reloading_and_stopping() {
    let folder = TempFolder::new();
    let socket = folder.path("notify");
    let listener = UnixDatagram::bind(&socket).unwrap();
    listener.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let notification = || {
        let mut message = [0; 256];
        let len = listener.recv(&mut message).expect("a notification");
        String::from_utf8(message[..len].to_vec()).unwrap()
    };
    let mut server = ServerProcess::start(&[], &[("NOTIFY_SOCKET", socket.to_str().unwrap())]);
    assert_eq!(notification(), "READY=1");
    server.signal("HUP");
    assert_eq!([notification(), notification()], ["RELOADING=1", "READY=1"]);
    server.signal("TERM");
    assert_eq!(notification(), "STOPPING=1");
    assert!(server.wait().is_some_and(|status| status.success()));
}

#[test]
fn the_notify_socket_may_be_abstract_or_missing() {
    use std::os::linux::net::SocketAddrExt;
    let name = format!("tidegate-test-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let listener = UnixDatagram::bind_addr(&address).unwrap();
    listener.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let mut server = ServerProcess::start(&[], &[("NOTIFY_SOCKET", &format!("@{name}"))]);
    let mut message = [0; 256];
    assert_eq!(listener.recv(&mut message).unwrap(), "READY=1".len());
    drop(listener);
    server.signal("HUP");
    server.signal("TERM");
    assert!(server.wait().is_some_and(|status| status.success()));
}
