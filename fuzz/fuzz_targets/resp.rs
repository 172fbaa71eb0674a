//! Bytes of a client of the Redis protocol: frames and commands.
#![no_main]

use std::cell::OnceCell;

use libfuzzer_sys::fuzz_target;
use tidegate_fuzz::ServerFixture;
use tidegate_server::internal::transport::resp::testing;

thread_local! {
    static WORLD: OnceCell<ServerFixture> = const { OnceCell::new() };
}

fuzz_target!(|bytes: &[u8]| {
    WORLD.with(|world| {
        let world = world.get_or_init(ServerFixture::new);
        let mut bytes = bytes.to_vec();
        let answers = testing::replies(&mut bytes, &world.service, world.tokens.clone());
        let answers = world.run(answers).expect("no command waits");
        assert_whole(&answers);
    });
});

/// Replies one after the other, with nothing between them: whatever was sent, none of it can be
/// taken for one.
fn assert_whole(answers: &[u8]) {
    let mut rest = answers;
    let mut open = 0_u64;
    while let Some((kind, after)) = rest.split_first() {
        let end = after.windows(2).position(|pair| pair == b"\r\n").expect("a line that ends");
        let line = str::from_utf8(&after[..end]).expect("a line of text");
        rest = &after[end + 2..];
        open = open.saturating_sub(1);
        match kind {
            b'+' | b'-' | b'_' | b'#' | b',' => assert!(!line.contains(char::is_control)),
            b':' => drop(line.parse::<i64>().expect("an integer")),
            b'$' if line == "-1" => {}
            b'$' => {
                let len: usize = line.parse().expect("a length");
                assert_eq!(&rest[len..len + 2], b"\r\n");
                rest = &rest[len + 2..];
            }
            b'*' | b'~' => open += line.parse::<u64>().expect("a length"),
            b'%' => open += 2 * line.parse::<u64>().expect("a length"),
            kind => panic!("no reply begins with {kind}"),
        }
    }
    assert_eq!(open, 0, "the last reply is whole");
}
