//! Commands of the native module, on keys that other programs write too.
#![no_main]

#[path = "../../crates/tidegate-module/tests/it/memory_call.rs"]
mod memory_call;

use libfuzzer_sys::fuzz_target;
use memory_call::MemoryStore;
use tidegate_module::{Reply, ReplyResult, decide, limit, throttle};

/// The protocol of `lean.lua` and limits as values begin, for inputs that get past the first byte.
const PACKED: &[u8] = b"\x01\0\0\0\0\0\0\xf0\xbf\x01\x01\0\x02\0\0\0\0\0\0\0\xf0\x3f";

fuzz_target!(|bytes: &[u8]| {
    let mut store = MemoryStore { now: 1_700_000_000_000_000, ..MemoryStore::default() };
    let mut rest = bytes;
    while let Some((&kind, after)) = rest.split_first() {
        rest = after;
        let words = words(&mut rest, usize::from(kind >> 3 & 7));
        let words: Vec<&[u8]> = [&b""[..]].into_iter().chain(words).collect();
        match kind & 7 {
            0 => run(&mut store, &words, |call| throttle(call)),
            1 | 2 => run(&mut store, &words, |call| limit(call)),
            3 | 4 => run(&mut store, &words, |call| decide(call)),
            5 => {
                let last = words.last().copied().unwrap_or_default();
                let one: [&[u8]; 5] = [b"", b"1", b"k", PACKED, last];
                run(&mut store, &one, |call| decide(call));
            }
            6 => {
                if let [_, key, value, ..] = words[..] {
                    store.values.insert(key.to_vec(), (value.to_vec(), u64::MAX / 2));
                }
            }
            _ => {
                let span = words.last().copied().unwrap_or_default();
                let span = span.iter().fold(0, |sum, byte| sum << 5 | u64::from(*byte));
                // The clock may step back.
                store.now = if kind & 8 == 0 {
                    store.now.saturating_add(span).min(1 << 52)
                } else {
                    store.now.saturating_sub(span)
                };
            }
        }
    }
});

/// Words of up to 255 bytes, each after its length.
fn words<'a>(rest: &mut &'a [u8], count: usize) -> Vec<&'a [u8]> {
    let word = |_| {
        let (&len, after) = rest.split_first()?;
        let (word, after) = after.split_at(usize::from(len).min(after.len()));
        *rest = after;
        Some(word)
    };
    (0..count).map_while(word).collect()
}

fn run<'a>(
    store: &'a mut MemoryStore,
    words: &[&'a [u8]],
    command: impl FnOnce(&mut memory_call::MemoryCall<'_>) -> ReplyResult,
) {
    let writes = store.writes;
    let reply = store.run(words, command);
    match reply {
        Ok(Reply::Decision([allowed, limit, left, retry, reset, delay])) => {
            assert!((0..=1).contains(&allowed) && (0..=limit).contains(&left), "{reply:?}");
            assert!(retry >= -1 && reset >= 0 && delay >= 0, "{reply:?}");
        }
        Ok(Reply::Throttle([limited, limit, left, retry, reset])) => {
            assert!((0..=1).contains(&limited) && (0..=limit).contains(&left), "{reply:?}");
            assert!(retry >= -1 && reset >= 0, "{reply:?}");
        }
        Ok(Reply::Bytes(_) | Reply::Integer(_)) => {}
        Err(_) => assert_eq!(store.writes, writes, "a refused command writes nothing"),
    }
}
