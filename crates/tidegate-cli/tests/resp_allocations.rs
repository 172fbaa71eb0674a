//! Allocations of a command: at most one for a known key.
#![expect(unsafe_code, reason = "an allocator that counts; the one of this test binary alone")]
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use testkit::resp::{RespConnection, command};
use testkit::resp_listener::RespListener;

const BATCHES: usize = 100;
const BATCH: usize = 100;

#[test]
fn a_command_on_a_known_key_allocates_once_at_most() {
    let listener = RespListener::open();
    let mut client = RespConnection::connect(listener.address);
    // The plan of a check allocates its list of steps; reading and writing allocate nothing.
    let table: [(&[&str], usize); 4] = [
        (&["CL.THROTTLE", "user-42", "1000000", "1000000", "1", "1"], 1),
        (&["TG.LIMIT", "1000000/s", "user-42"], 1),
        (&["TG.LIMIT", "sliding-window 1000000/1h", "user-42", "COST", "2"], 1),
        (&["PING"], 0),
    ];
    for (words, most) in table {
        let batch = command(words).repeat(BATCH);
        let mut counted = 0;
        for round in 0..=BATCHES {
            // The first round creates the key and grows the buffers.
            if round == 1 {
                counted = ALLOCATIONS.load(Ordering::SeqCst);
            }
            client.write(&batch);
            for _ in 0..BATCH {
                client.receive();
            }
        }
        counted = ALLOCATIONS.load(Ordering::SeqCst) - counted;
        let commands = BATCHES * BATCH;
        writeln!(std::io::stderr(), "resp: {counted} allocations for {commands} {}", words[0])
            .unwrap();
        // A batch may arrive in two pieces, which moves the buffer.
        assert!(counted <= most * commands + 2 * BATCHES, "{words:?}: {counted} allocations");
    }
}

// --- an allocator that counts ------------------------------------------------------------------

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Whether this is a thread of the server.
    static SERVES: Cell<Option<bool>> = const { Cell::new(None) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

impl Counting {
    fn count() {
        let serves = SERVES.get().unwrap_or_else(|| {
            // Reading the thread name may allocate.
            SERVES.set(Some(false));
            let serves =
                std::thread::current().name().is_some_and(|name| name.starts_with("tokio"));
            SERVES.set(Some(serves));
            serves
        });
        if serves {
            ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        }
    }
}

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count();
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above; the block came from the system's allocator.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::count();
        // SAFETY: as above.
        unsafe { System.realloc(block, layout, size) }
    }
}
