//! Tests of the parser: every input is fed whole, in two parts, and byte by byte.

use super::ProtocolError::*;
use super::*;

type Words = Vec<Vec<u8>>;

/// Result of parsing an input: commands, bytes left, error.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Read {
    commands: Vec<Words>,
    left: usize,
    error: Option<ProtocolError>,
}

/// Feeds the input in parts that end at `ends` and at the end.
fn read(input: &[u8], ends: &[usize], caps: Caps) -> Read {
    let mut parser = Parser::new(caps);
    let mut buffer = Vec::new();
    let mut read = Read { commands: Vec::new(), left: 0, error: None };
    let mut start = 0;
    for end in ends.iter().copied().chain([input.len()]) {
        buffer.extend_from_slice(&input[start..end]);
        start = end;
        let mut rest = buffer.as_mut_slice();
        let error = loop {
            match parser.parse(&mut rest) {
                Ok(Some(Command { name, arguments })) => {
                    let words = [name].into_iter().chain(arguments).map(<[u8]>::to_vec);
                    read.commands.push(words.collect());
                }
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        let left = rest.len();
        if let Some(error) = error {
            assert_eq!(parser.parse(&mut rest), Err(error), "an error stays");
            read.error = Some(error);
            // Bytes that were not fed count as left, so that results can be compared.
            read.left = left + input.len() - end;
            return read;
        }
        assert!(left < caps.longest(), "waits beyond the caps");
        buffer.drain(..buffer.len() - left);
    }
    read.left = buffer.len();
    read
}

/// [`read`] of the whole input; asserts that every split in two, and byte by byte, agrees.
fn read_every_way(input: &[u8], caps: Caps) -> Read {
    let whole = read(input, &[], caps);
    let shown = input.escape_ascii();
    for end in 0..input.len() {
        assert_eq!(read(input, &[end], caps), whole, "{shown} cut at {end}");
    }
    let bytewise: Vec<usize> = (1..input.len()).collect();
    assert_eq!(read(input, &bytewise, caps), whole, "{shown} byte by byte");
    whole
}

fn words(words: &[&[u8]]) -> Words {
    words.iter().map(|word| word.to_vec()).collect()
}

#[test]
fn valid_requests_give_their_words() {
    type Case = (&'static [u8], &'static [&'static [&'static [u8]]]);
    let table: [Case; 36] = [
        (b"", &[]),
        (b"*1\r\n$4\r\nPING\r\n", &[&[b"PING"]]),
        (b"*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n", &[&[b"ECHO", b"hi"]]),
        (b"*1\r\n$0\r\n\r\n", &[&[b""]]),
        (b"*2\r\n$1\r\na\r\n$4\r\n\r\n$\0\r\n", &[&[b"a", b"\r\n$\0"]]),
        (b"*1\r\n$10\r\n0123456789\r\n", &[&[b"0123456789"]]),
        (b"*1\r\n$1\r\na\r\n*1\r\n$1\r\nb\r\n", &[&[b"a"], &[b"b"]]),
        (b"*1\r\n$1\r\na\r\nPING\r\n*1\r\n$1\r\nb\r\n", &[&[b"a"], &[b"PING"], &[b"b"]]),
        // Skipped.
        (b"*0\r\n", &[]),
        (b"*-1\r\n", &[]),
        (b"\r\n\n  \t\r\n", &[]),
        (b"*0\r\n\r\n*-1\r\nPING\n*0\r\n", &[&[b"PING"]]),
        // Lines.
        (b"PING\r\n", &[&[b"PING"]]),
        (b"PING\n", &[&[b"PING"]]),
        (b"  ECHO \t hi  \r\n", &[&[b"ECHO", b"hi"]]),
        (b"a\rb\n", &[&[b"a", b"b"]]),
        (b"$4\r\n", &[&[b"$4"]]),
        (b"a\0b\n", &[&[b"a\0b"]]),
        (b"\xff\xfe \x16\n", &[&[b"\xff\xfe", b"\x16"]]),
        (b"ECHO \"a b\"\n", &[&[b"ECHO", b"a b"]]),
        (b"ECHO 'a b' \"\" ''\n", &[&[b"ECHO", b"a b", b"", b""]]),
        (b"\"\"\n", &[&[b""]]),
        (b"a\"b c\" d'e f'\r\n", &[&[b"ab c", b"de f"]]),
        (b"\"\\n\\r\\t\\b\\a\\\\\\\"\\q\"\n", &[&[b"\n\r\t\x08\x07\\\"q"]]),
        (b"\"\\x41\\xfF\\x00\" b\n", &[&[b"A\xff\0", b"b"]]),
        (b"\"\\x4\" \"\\x\" \"\\xg1\"\n", &[&[b"x4", b"x", b"xg1"]]),
        (b"'\\'\\n\\\\a' x\n", &[&[b"'\\n\\\\a", b"x"]]),
        (b"a\\nb \"'\" '\"'\n", &[&[b"a\\nb", b"'", b"\""]]),
        // Not HTTP.
        (b"GET key\r\n", &[&[b"GET", b"key"]]),
        (b"GET key/HTTP/1.1\r\n", &[&[b"GET", b"key/HTTP/1.1"]]),
        (b"GET HTTP/1\r\n", &[&[b"GET", b"HTTP/1"]]),
        (b"GET HTTP/a.b\r\n", &[&[b"GET", b"HTTP/a.b"]]),
        (b"POSTS a\r\n", &[&[b"POSTS", b"a"]]),
        (b"Hosts: a\r\n", &[&[b"Hosts:", b"a"]]),
        (b"\"POST\" a\r\n", &[&[b"POST", b"a"]]),
        (b"*1\r\n$4\r\nPOST\r\n", &[&[b"POST"]]),
    ];
    for (input, commands) in table {
        let commands = commands.iter().map(|command| words(command)).collect();
        let read = read_every_way(input, Caps::UNAUTHENTICATED);
        assert_eq!(read, Read { commands, left: 0, error: None }, "{}", input.escape_ascii());
    }
}

#[test]
fn invalid_requests_give_their_error_as_early_as_possible() {
    let table: [(&[u8], ProtocolError); 46] = [
        (b"*a", InvalidArrayLength),
        (b"*\r", InvalidArrayLength),
        (b"*\n", InvalidArrayLength),
        (b"*+", InvalidArrayLength),
        (b"* ", InvalidArrayLength),
        (b"*1 ", InvalidArrayLength),
        (b"*1\n", InvalidArrayLength),
        (b"*1\rx", InvalidArrayLength),
        (b"*01", InvalidArrayLength),
        (b"*00", InvalidArrayLength),
        (b"*-0", InvalidArrayLength),
        (b"*-2", InvalidArrayLength),
        (b"*-11", InvalidArrayLength),
        (b"*-1\n", InvalidArrayLength),
        (b"*-1\r\r", InvalidArrayLength),
        (b"*0\r\r", InvalidArrayLength),
        (b"*9", TooManyWords),
        (b"*10", TooManyWords),
        (b"*1\r\nP", ExpectedBulk),
        (b"*1\r\n+", ExpectedBulk),
        (b"*1\r\n:", ExpectedBulk),
        (b"*1\r\n*", ExpectedBulk),
        (b"*1\r\n\r", ExpectedBulk),
        (b"*1\r\n$a", InvalidBulkLength),
        (b"*1\r\n$-", InvalidBulkLength),
        (b"*1\r\n$\r", InvalidBulkLength),
        (b"*1\r\n$1\n", InvalidBulkLength),
        (b"*1\r\n$1\r1", InvalidBulkLength),
        (b"*1\r\n$01", InvalidBulkLength),
        (b"*1\r\n$1025", BulkTooLong),
        (b"*1\r\n$2000", BulkTooLong),
        (b"*1\r\n$1\r\nab", UnendedBulk),
        (b"*1\r\n$1\r\na\n", UnendedBulk),
        (b"*1\r\n$1\r\na\ra", UnendedBulk),
        (b"*2\r\n$1\r\na\r\r", UnendedBulk),
        (b"*2\r\n$1\r\na\r\n\r", ExpectedBulk),
        (b"ECHO \"a\n", UnbalancedQuotes),
        (b"ECHO 'a\r\n", UnbalancedQuotes),
        (b"ECHO \"a\"b\n", UnbalancedQuotes),
        (b"ECHO 'a''b'\n", UnbalancedQuotes),
        (b"ECHO \"a\\\"\n", UnbalancedQuotes),
        (b"ECHO 'a\\'\n", UnbalancedQuotes),
        (b"\"\n", UnbalancedQuotes),
        (b"\"\\x4\n", UnbalancedQuotes),
        (b"\"\\\n", UnbalancedQuotes),
        (b"1 2 3 4 5 6 7 8 9\n", TooManyWords),
    ];
    for (input, error) in table {
        let caps = Caps::UNAUTHENTICATED;
        let shown = input.escape_ascii();
        assert_eq!(read_every_way(input, caps).error, Some(error), "{shown}");
        assert_eq!(read(&input[..input.len() - 1], &[], caps).error, None, "{shown}");
        // Commands before it are parsed, and bytes after it change nothing.
        let after = [b"*1\r\n$1\r\na\r\n\n", input, b"\r\n*1\r\n$1\r\nb\r\n"].concat();
        let read = read_every_way(&after, caps);
        assert_eq!((read.commands.len(), read.error), (1, Some(error)), "{shown}");
    }
}

#[test]
fn http_is_detected_by_its_first_words_or_its_last() {
    let table: [&[u8]; 22] = [
        b"POST ",
        b"post\t",
        b" POST ",
        b"POST\r",
        b"POST\n",
        b"HEAD ",
        b"PUT ",
        b"OPTIONS ",
        b"DELETE ",
        b"PATCH ",
        b"CONNECT ",
        b"TRACE ",
        b"Host:",
        b"hOST:",
        b"GET /",
        b"get /",
        b"\r\n*0\r\nPOST ",
        b"GET key HTTP/1.1\n",
        b"GET http://localhost/ HTTP/1.0\r\n",
        b"PRI * HTTP/2.0\r\n",
        b"PROPFIND / http/1.1 \r\n",
        b"HTTP/1.1\n",
    ];
    for input in table {
        let read = read_every_way(input, Caps::UNAUTHENTICATED);
        assert_eq!(read.error, Some(Http), "{}", input.escape_ascii());
        assert!(read.commands.is_empty());
    }
    let long = [b"GET /", [b'x'; 2_000].as_slice()].concat();
    assert_eq!(read(&long, &[], Caps::AUTHENTICATED).error, Some(Http));
}

#[test]
fn incomplete_requests_wait() {
    let table: [&[u8]; 14] = [
        b"*",
        b"*8",
        b"*-",
        b"*-1\r",
        b"*1\r",
        b"*1\r\n",
        b"*1\r\n$",
        b"*1\r\n$1024",
        b"*1\r\n$1024\r\n",
        b"*1\r\n$1\r\na\r",
        b"*2\r\n$1\r\na\r\n",
        b"PING\r",
        b"POST",
        b"GET key HTTP/1.1",
    ];
    for input in table {
        let expected = Read { commands: Vec::new(), left: input.len(), error: None };
        let shown = input.escape_ascii();
        assert_eq!(read_every_way(input, Caps::UNAUTHENTICATED), expected, "{shown}");
    }
}

#[test]
fn a_request_may_be_as_long_as_the_caps_and_no_longer() {
    let caps = Caps { bulk: 20, words: 3, frame: 50, line: 30 };
    let bulk = |len: usize| format!("${len}\r\n{}\r\n", "x".repeat(len));
    let array = |lens: &[usize]| {
        let bulks: String = lens.iter().map(|len| bulk(*len)).collect();
        format!("*{}\r\n{bulks}", lens.len())
    };
    let line = |len: usize| format!("{} {}\n", "y".repeat(10), "z".repeat(len - 12));
    let table = [
        (array(&[20]), None),
        (array(&[21]), Some(BulkTooLong)),
        (array(&[1, 1, 1]), None),
        (array(&[1, 1, 1, 1]), Some(TooManyWords)),
        (array(&[18, 14]), None),
        (array(&[18, 15]), Some(FrameTooLong)),
        (array(&[20, 20]), Some(FrameTooLong)),
        (array(&[18, 14, 0]), Some(FrameTooLong)),
        (array(&[18, 10, 0]), Some(FrameTooLong)),
        (array(&[18, 8, 0]), None),
        (line(30), None),
        (line(31), Some(LineTooLong)),
        (format!("{}\n", "y".repeat(20)), None),
        (format!("{}\n", "y".repeat(21)), Some(BulkTooLong)),
        (format!("{}\n", " ".repeat(29)), None),
        (format!("{}\n", " ".repeat(30)), Some(LineTooLong)),
        ("a b c\n".to_owned(), None),
        ("a b c d\n".to_owned(), Some(TooManyWords)),
    ];
    for (input, error) in table {
        let read = read_every_way(input.as_bytes(), caps);
        assert_eq!(read.error, error, "{input:?}");
        let blank = input.trim_ascii().is_empty();
        assert_eq!(read.commands.len(), usize::from(error.is_none() && !blank), "{input:?}");
    }
}

#[test]
fn a_length_above_the_cap_is_refused_when_it_arrives() {
    let authenticated = Caps::AUTHENTICATED;
    let table: [(&[u8], Caps, ProtocolError); 9] = [
        (b"*65", authenticated, TooManyWords),
        (b"*1000000000", authenticated, TooManyWords),
        (b"*99999999999999999999999999", authenticated, TooManyWords),
        (b"*1\r\n$65537", authenticated, BulkTooLong),
        (b"*1\r\n$99999999999999999999999999", authenticated, BulkTooLong),
        (b"*9", Caps::UNAUTHENTICATED, TooManyWords),
        (b"*1\r\n$1025", Caps::UNAUTHENTICATED, BulkTooLong),
        (b"*2\r\n$1\r\na\r\n$90\r\n", Caps { frame: 99, ..authenticated }, FrameTooLong),
        (
            b"*1\r\n$18446744073709551615\r\n",
            Caps { bulk: usize::MAX, ..authenticated },
            FrameTooLong,
        ),
    ];
    for (input, caps, error) in table {
        let shown = input.escape_ascii();
        assert_eq!(read_every_way(input, caps).error, Some(error), "{shown}");
    }
    // The last byte that fits is the newline after the bulk string.
    let announced = b"*2\r\n$1\r\na\r\n$9\r\n";
    let len = announced.len() + 9 + 2;
    let error = |frame| read(announced, &[], Caps { frame, ..authenticated }).error;
    assert_eq!((error(len), error(len - 1)), (None, Some(FrameTooLong)));
}

#[test]
fn an_authenticated_client_may_send_more() {
    let long = [b"*1\r\n$2000\r\n".as_slice(), &[b'x'; 2_000], b"\r\n"].concat();
    let mut buffer = [b"AUTH secret\r\n", long.as_slice()].concat();
    let mut parser = Parser::new(Caps::UNAUTHENTICATED);
    let mut rest = buffer.as_mut_slice();
    assert!(parser.parse(&mut rest).unwrap().unwrap().is("auth"));
    assert_eq!(parser.clone().parse(&mut rest), Err(BulkTooLong));
    parser.set_caps(Caps::AUTHENTICATED);
    assert_eq!(parser.parse(&mut rest).unwrap().unwrap().name.len(), 2_000);
    assert!(rest.is_empty());
}

#[test]
fn many_arguments_are_all_parsed() {
    let mut buffer = b"*64\r\n".to_vec();
    let numbers: Vec<String> = (0..64).map(|i| i.to_string()).collect();
    for number in &numbers {
        buffer.extend_from_slice(format!("${}\r\n{number}\r\n", number.len()).as_bytes());
    }
    let expected: Words = numbers.into_iter().map(String::into_bytes).collect();
    assert_eq!(read_every_way(&buffer, Caps::AUTHENTICATED).commands, [expected]);
}

#[test]
fn every_error_but_http_has_a_reply_of_one_line() {
    let errors = [
        InvalidArrayLength,
        InvalidBulkLength,
        ExpectedBulk,
        UnendedBulk,
        UnbalancedQuotes,
        TooManyWords,
        BulkTooLong,
        FrameTooLong,
        LineTooLong,
    ];
    for error in errors {
        let reply = error.reply().unwrap();
        assert!(reply.starts_with("ERR Protocol error: "), "{reply}");
        assert!(!reply.contains(|c: char| c.is_control()), "{reply}");
        assert_eq!(format!("ERR Protocol error: {error}"), reply);
    }
    assert_eq!(Http.reply(), None);
    assert!(Http.to_string().contains("HTTP"));
}
