//! `#[rate_limit(..)]`: keys, costs, limits, waiting, errors, and what the function keeps. The
//! clock is manual and futures are polled by hand.
// The generated code must not trigger lints in the crates that use the attribute.
#![warn(clippy::pedantic)]

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::{
    EngineError, Limit, Limited, Limiter, ManualClock, Memory, Policy, Refusal, Rule, Wait,
    rate_limit,
};

use testkit::now_or_never::now_or_panic;

// --- keys ---------------------------------------------------------------------------------------

#[rate_limit("2/min", key = name, limiter = limiter)]
async fn by_name(limiter: &Limiter, name: &str) -> Result<String, Limited> {
    Ok(name.to_string())
}

#[rate_limit("2/min", limiter = limiter)]
async fn all_callers(limiter: &Limiter, _name: &str) -> Result<(), Limited> {
    Ok(())
}

#[rate_limit("2/min", key = (tenant, user), limiter = limiter)]
async fn by_both(limiter: &Limiter, tenant: &str, user: u64) -> Result<(), Limited> {
    Ok(())
}

#[test]
fn each_key_is_counted_separately() {
    let limiter = new_limiter();
    assert_eq!(admitted(3, || by_name(&limiter, "alice")), 2);
    assert_eq!(admitted(3, || by_name(&limiter, "bob")), 2);
    assert_eq!(admitted(1, || by_name(&limiter, "alice")), 0);
}

#[test]
fn without_a_key_all_calls_are_counted_together() {
    let limiter = new_limiter();
    assert_eq!(admitted(2, || all_callers(&limiter, "alice")), 2);
    assert_eq!(admitted(1, || all_callers(&limiter, "bob")), 0);
}

#[test]
fn the_parts_of_a_key_are_separated() {
    let limiter = new_limiter();
    assert_eq!(admitted(3, || by_both(&limiter, "acme", 11)), 2);
    assert_eq!(admitted(3, || by_both(&limiter, "acme1", 1)), 2);
    assert_eq!(admitted(3, || by_both(&limiter, "acme", 1)), 2);
}

#[test]
fn an_address_is_normalized_and_text_is_not() {
    #[rate_limit("1/min", key = ip, limiter = limiter)]
    async fn by_address(limiter: &Limiter, ip: IpAddr) -> Result<(), Limited> {
        Ok(())
    }
    #[rate_limit("1/min", key = socket, limiter = limiter)]
    async fn by_socket(limiter: &Limiter, socket: SocketAddr) -> Result<(), Limited> {
        Ok(())
    }
    let limiter = new_limiter();
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    assert_eq!(admitted(2, || by_address(&limiter, ip("2001:db8::1"))), 1);
    assert_eq!(admitted(1, || by_address(&limiter, ip("2001:db8::2"))), 0, "the same /64");
    assert_eq!(admitted(1, || by_address(&limiter, ip("2001:db8:0:1::1"))), 1);
    assert_eq!(admitted(1, || by_name(&limiter, "2001:db8::1")), 1);
    assert_eq!(admitted(2, || by_name(&limiter, "2001:db8::2")), 2, "text is not normalized");
    let socket = |text: &str| text.parse::<SocketAddr>().unwrap();
    assert_eq!(admitted(1, || by_socket(&limiter, socket("1.2.3.4:50000"))), 1);
    assert_eq!(admitted(1, || by_socket(&limiter, socket("1.2.3.4:50001"))), 0, "another port");
}

#[test]
fn any_display_value_can_be_a_key_and_is_still_usable_in_the_body() {
    struct Order {
        number: u32,
        note: String,
    }
    impl fmt::Display for Order {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "order {}", self.number)
        }
    }
    #[rate_limit("1/min", key = (order, order.number + 1, order.note, 'c', 7, "text"), limiter = limiter)]
    async fn take(limiter: &Limiter, order: Order) -> Result<String, Limited> {
        Ok(order.note)
    }
    let limiter = new_limiter();
    let order = |number| Order { number, note: "fragile".to_string() };
    assert_eq!(now_or_panic(take(&limiter, order(1))).unwrap(), "fragile");
    assert_eq!(admitted(1, || take(&limiter, order(1))), 0);
    assert_eq!(admitted(1, || take(&limiter, order(2))), 1);
}

#[test]
fn a_key_that_is_too_long_is_refused_and_the_body_does_not_run() {
    let limiter = new_limiter();
    let long = "k".repeat(1_025);
    let refused = now_or_panic(by_name(&limiter, &long)).unwrap_err();
    assert_eq!(refusal(&refused), Some(&Refusal::KeyTooLong));
    assert_eq!(admitted(3, || by_name(&limiter, &long[1..])), 2);
}

// --- costs and several limits -------------------------------------------------------------------

#[rate_limit("10/min", cost = cost, limiter = limiter)]
async fn weighed(limiter: &Limiter, cost: i64) -> Result<(), Limited> {
    Ok(())
}

#[test]
fn the_cost_is_charged() {
    let limiter = new_limiter();
    assert_eq!(admitted(1, || weighed(&limiter, 7)), 1);
    assert_eq!(admitted(1, || weighed(&limiter, 4)), 0);
    assert_eq!(admitted(1, || weighed(&limiter, 3)), 1);
    assert_eq!(admitted(1, || weighed(&limiter, 1)), 0);
    assert_eq!(admitted(1, || weighed(&limiter, 0)), 1, "a cost of 0 always passes");
}

#[test]
fn an_impossible_cost_never_passes_and_charges_nothing() {
    let limiter = new_limiter();
    assert_eq!(denied(now_or_panic(weighed(&limiter, 11)).unwrap_err()), Wait::Never);
    for cost in [-1, i64::MIN] {
        let refused = now_or_panic(weighed(&limiter, cost)).unwrap_err();
        assert_eq!(refusal(&refused), Some(&Refusal::CostRange), "{cost}");
    }
    let refused = now_or_panic(weighed(&limiter, i64::MAX)).unwrap_err();
    assert!(matches!(refusal(&refused), Some(Refusal::Cost(_))));
    assert_eq!(admitted(1, || weighed(&limiter, 10)), 1);
}

#[test]
fn several_limits_are_charged_all_or_none() {
    #[rate_limit("3/min", "fixed-window 5/d", key = name, limiter = limiter)]
    async fn both(limiter: &Limiter, name: &str) -> Result<(), Limited> {
        Ok(())
    }
    let (limiter, clock) = limiter_and_clock();
    assert_eq!(admitted(9, || both(&limiter, "alice")), 3, "the bucket denies");
    clock.advance(Duration::from_secs(60));
    // Six denials have charged nothing to the day.
    assert_eq!(admitted(9, || both(&limiter, "alice")), 2, "the day denies");
    clock.advance(Duration::from_secs(60));
    let Err(Limited::Denied(decision)) = now_or_panic(both(&limiter, "alice")) else {
        panic!("denied")
    };
    assert_eq!(decision.verdicts.len(), 2);
    assert_eq!(decision.verdicts[0].remaining, 3, "nor to the bucket");
}

// --- waiting -----------------------------------------------------------------------------------

#[rate_limit("1/s", key = "k", wait = "1500ms", limiter = limiter)]
async fn patient(limiter: &Limiter) -> Result<(), Limited> {
    Ok(())
}

#[test]
fn a_call_waits_for_its_turn_and_not_for_one_that_is_too_late() {
    let (limiter, clock) = limiter_and_clock();
    assert!(now_or_panic(patient(&limiter)).is_ok());
    let mut second = pin!(patient(&limiter));
    assert!(poll(second.as_mut()).is_pending());
    // The third would have to wait for two seconds.
    let late = now_or_panic(patient(&limiter)).unwrap_err();
    assert_eq!(denied(late), Wait::For(Duration::from_secs(2).into()));
    clock.advance(Duration::from_millis(999));
    assert!(poll(second.as_mut()).is_pending());
    clock.advance(Duration::from_millis(1));
    assert!(matches!(poll(second.as_mut()), Poll::Ready(Ok(()))));
}

#[test]
fn a_call_that_is_dropped_while_it_waits_has_charged_nothing() {
    let (limiter, clock) = limiter_and_clock();
    assert!(now_or_panic(patient(&limiter)).is_ok());
    {
        let mut waiting = pin!(patient(&limiter));
        assert!(poll(waiting.as_mut()).is_pending());
    }
    clock.advance(Duration::from_secs(1));
    assert!(now_or_panic(patient(&limiter)).is_ok());
}

#[test]
fn the_wait_can_be_an_expression() {
    #[rate_limit("1/s", wait = timeout * 2, limiter = limiter)]
    async fn within(limiter: &Limiter, timeout: Duration) -> Result<(), Limited> {
        Ok(())
    }
    let (limiter, clock) = limiter_and_clock();
    assert!(now_or_panic(within(&limiter, Duration::ZERO)).is_ok());
    assert!(now_or_panic(within(&limiter, Duration::from_millis(499))).is_err());
    let mut waiting = pin!(within(&limiter, Duration::from_millis(500)));
    assert!(poll(waiting.as_mut()).is_pending());
    clock.advance(Duration::from_secs(1));
    assert!(poll(waiting.as_mut()).is_ready());
}

#[test]
fn a_slot_is_held_until_the_body_has_ended_or_was_dropped() {
    #[rate_limit("concurrency 2", "10/h", limiter = limiter)]
    async fn inside(limiter: &Limiter, ends: bool) -> Result<(), Limited> {
        if ends { Ok(()) } else { std::future::pending().await }
    }
    let (limiter, _clock) = limiter_and_clock();
    let denied = |ends| matches!(poll(pin!(inside(&limiter, ends))), Poll::Ready(Err(_)));
    let mut first = Box::pin(inside(&limiter, false));
    assert!(poll(first.as_mut()).is_pending());
    assert!(!denied(true), "there is a second slot, which is released at the end");
    let mut second = Box::pin(inside(&limiter, false));
    assert!(poll(second.as_mut()).is_pending());
    assert!(denied(true), "both slots are taken");
    drop(first);
    assert!(!denied(true));
    drop(second);
    // Four have passed; a call without a slot has not charged.
    assert_eq!((0..10).filter(|_| !denied(true)).count(), 6);
}

#[test]
fn a_queue_delays_the_body_until_its_turn() {
    #[rate_limit("leaky-bucket 1/s capacity 2 queue", limiter = limiter)]
    async fn queued(limiter: &Limiter) -> Result<(), Limited> {
        Ok(())
    }
    let (limiter, clock) = limiter_and_clock();
    let mut calls: Vec<_> = (0..4).map(|_| Box::pin(queued(&limiter))).collect();
    // How many more have passed, and how many were denied.
    let mut poll_all = move || {
        let (mut passed, mut denied) = (0, 0);
        calls.retain_mut(|call| match poll(call.as_mut()) {
            Poll::Ready(Ok(())) => {
                passed += 1;
                false
            }
            Poll::Ready(Err(_)) => {
                denied += 1;
                false
            }
            Poll::Pending => true,
        });
        (passed, denied)
    };
    assert_eq!(poll_all(), (1, 2), "one at once, one waits, and there is no room for more");
    clock.advance(Duration::from_millis(999));
    assert_eq!(poll_all(), (0, 0));
    clock.advance(Duration::from_millis(1));
    assert_eq!(poll_all(), (1, 0));
}

// --- return values ------------------------------------------------------------------------------

#[derive(Debug)]
enum AppError {
    TooOften(Limited),
    Empty,
}

impl From<Limited> for AppError {
    fn from(limited: Limited) -> Self {
        Self::TooOften(limited)
    }
}

#[test]
fn a_denial_becomes_the_error_of_the_function() {
    #[rate_limit("1/min", limiter = limiter)]
    async fn post(limiter: &Limiter, body: &str) -> Result<usize, AppError> {
        let first = body.chars().next().ok_or(AppError::Empty)?;
        if first == '!' {
            return Ok(0);
        }
        Ok(body.len())
    }
    let called = |body: &'static str| now_or_panic(post(&new_limiter(), body));
    assert!(matches!(called("abc"), Ok(3)));
    assert!(matches!(called("!"), Ok(0)), "an early return");
    assert!(matches!(called(""), Err(AppError::Empty)), "an error of the body");
    let limiter = new_limiter();
    assert!(now_or_panic(post(&limiter, "abc")).is_ok());
    let Err(AppError::TooOften(reason)) = now_or_panic(post(&limiter, "abc")) else {
        panic!("limited")
    };
    assert_eq!(reason.to_string(), "rate limited; retry after 1m");
}

#[test]
fn boxed_errors_and_the_reason_itself_need_no_conversion() {
    #[rate_limit("0/min", limiter = limiter)]
    async fn boxed(limiter: &Limiter) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(())
    }
    let error = now_or_panic(boxed(&new_limiter())).unwrap_err();
    assert!(error.downcast_ref::<Limited>().is_some());
}

#[test]
fn with_or_any_value_is_returned_and_can_contain_the_reason() {
    #[rate_limit("1/min", or = Vec::new(), limiter = limiter)]
    async fn list(limiter: &Limiter) -> Vec<u8> {
        vec![1, 2, 3]
    }
    #[rate_limit("1/min", or = format!("{name}: {limited}"), key = name, limiter = limiter)]
    async fn greet(limiter: &Limiter, name: String) -> String {
        name
    }
    #[rate_limit("0/min", or = (), limiter = limiter)]
    async fn nothing(limiter: &Limiter, ran: &Cell<bool>) {
        ran.set(true);
    }
    #[rate_limit("0/min", or = Err(limited.to_string()), limiter = limiter)]
    async fn other(limiter: &Limiter) -> Result<(), String> {
        Ok(())
    }
    let limiter = new_limiter();
    assert_eq!(now_or_panic(list(&limiter)), [1, 2, 3]);
    assert!(now_or_panic(list(&limiter)).is_empty());
    assert_eq!(now_or_panic(greet(&limiter, "alice".into())), "alice");
    let returned = now_or_panic(greet(&limiter, "alice".into()));
    assert_eq!(returned, "alice: rate limited; retry after 1m");
    let ran = Cell::new(false);
    now_or_panic(nothing(&limiter, &ran));
    assert!(!ran.get(), "the body of a limited call does not run");
    assert!(now_or_panic(other(&limiter)).unwrap_err().starts_with("rate limited"));
}

// --- limiters and rules -------------------------------------------------------------------------

#[test]
fn a_limiter_may_be_owned_shared_or_behind_a_lock() {
    #[rate_limit("1/min", limiter = limiter)]
    async fn owned(limiter: Limiter) -> Result<(), Limited> {
        // The attribute did not move it.
        drop(limiter);
        Ok(())
    }
    #[rate_limit("1/min", limiter = limiter)]
    async fn shared(limiter: Arc<Limiter>) -> Result<(), Limited> {
        Ok(())
    }
    #[rate_limit("1/min", limiter = limiter)]
    async fn borrowed(limiter: &Arc<Limiter>) -> Result<(), Limited> {
        Ok(())
    }
    #[rate_limit("1/min", limiter = limiter.lock().unwrap(), key = name.lock().unwrap(), wait = "1s")]
    async fn locked(limiter: &Mutex<Limiter>, name: &Mutex<String>) -> Result<(), Limited> {
        // Both locks are free again, or this would deadlock.
        drop((limiter.lock().unwrap(), name.lock().unwrap()));
        Ok(())
    }
    let limiter = Arc::new(new_limiter());
    assert_eq!(admitted(2, || owned((*limiter).clone())), 1);
    assert_eq!(admitted(2, || shared(limiter.clone())), 1);
    assert_eq!(admitted(2, || borrowed(&limiter)), 1);
    let (mutex, name) = (Mutex::new((*limiter).clone()), Mutex::new("alice".to_string()));
    assert_send(&locked(&mutex, &name));
    assert!(now_or_panic(locked(&mutex, &name)).is_ok());
}

#[test]
fn a_rule_of_the_limiters_policy_can_be_named() {
    #[rate_limit(rule = "login", key = (tenant, ip), limiter = limiter)]
    async fn login(limiter: &Limiter, tenant: &str, ip: IpAddr) -> Result<(), Limited> {
        Ok(())
    }
    let rule = Rule::new("login", [limit("2/min")]).unwrap();
    let limiter = Limiter::with_rules(memory(ManualClock::default()), [rule]).unwrap();
    let ip = IpAddr::from([1, 2, 3, 4]);
    assert_eq!(admitted(3, || login(&limiter, "acme", ip)), 2);
    limiter.set_rule(Rule::new("login", [limit("3/min")]).unwrap()).unwrap();
    assert_eq!(admitted(3, || login(&limiter, "acme", ip)), 1, "a changed rule applies at once");

    let refused = now_or_panic(login(&new_limiter(), "acme", ip)).unwrap_err();
    assert_eq!(
        refusal(&refused),
        Some(&Refusal::UnknownRule { name: "login".into(), meant: None })
    );
}

#[test]
fn a_limit_in_an_unknown_zone_refuses_every_call() {
    #[rate_limit("fixed-window 5/d tz Mars/Base", limiter = limiter)]
    async fn on_mars(limiter: &Limiter) -> Result<(), Limited> {
        Ok(())
    }
    for _ in 0..2 {
        let refused = now_or_panic(on_mars(&new_limiter())).unwrap_err();
        assert_eq!(refusal(&refused), Some(&Refusal::UnknownZone("Mars/Base".into())));
    }
}

#[test]
fn without_a_limiter_the_global_one_is_used_and_can_no_longer_be_replaced() {
    #[rate_limit("2/d", key = name)]
    async fn process_wide(name: &str) -> Result<(), Limited> {
        Ok(())
    }
    assert_eq!(admitted(3, || process_wide("alice")), 2);
    assert_eq!(admitted(3, || process_wide("bob")), 2);
    assert!(Limiter::set_global(new_limiter()).is_err());
}

// --- rule names ---------------------------------------------------------------------------------

/// Functions of one name, in every scope in which a name can occur twice.
mod names {
    use tidegate::{Limited, Limiter, rate_limit};

    #[rate_limit("1/h", limiter = limiter)]
    pub(crate) async fn create(limiter: &Limiter) -> Result<(), Limited> {
        Ok(())
    }

    pub(crate) mod inner {
        use super::{Limited, Limiter, rate_limit};

        #[rate_limit("1/h", limiter = limiter)]
        pub(crate) async fn create(limiter: &Limiter) -> Result<(), Limited> {
            Ok(())
        }
    }

    pub(crate) struct Post;
    pub(crate) struct Page<T>(pub(crate) T);

    impl Post {
        #[rate_limit("1/h", limiter = limiter)]
        pub(crate) async fn create(limiter: &Limiter) -> Result<(), Limited> {
            Ok(())
        }
    }

    impl Page<u8> {
        #[rate_limit("1/h", limiter = limiter)]
        pub(crate) async fn create(limiter: &Limiter) -> Result<(), Limited> {
            Ok(())
        }
    }

    impl Page<u16> {
        #[rate_limit("1/h", limiter = limiter)]
        pub(crate) async fn create(limiter: &Limiter) -> Result<(), Limited> {
            Ok(())
        }
    }

    pub(crate) trait Create {
        async fn create(limiter: &Limiter) -> Result<(), Limited>;

        #[rate_limit("1/h", limiter = limiter)]
        async fn create_by_default(&self, limiter: &Limiter) -> Result<(), Limited> {
            Ok(())
        }
    }

    impl Create for Post {
        #[rate_limit("1/h", limiter = limiter)]
        async fn create(limiter: &Limiter) -> Result<(), Limited> {
            Ok(())
        }
    }

    impl<T> Create for Page<T> {
        #[rate_limit("1/h", limiter = limiter)]
        async fn create(limiter: &Limiter) -> Result<(), Limited> {
            Ok(())
        }
    }

    pub(crate) async fn nested(limiter: &Limiter) -> Result<(), Limited> {
        #[rate_limit("1/h", limiter = limiter)]
        async fn create(limiter: &Limiter) -> Result<(), Limited> {
            Ok(())
        }
        create(limiter).await
    }

    #[rate_limit("1/h", limiter = limiter)]
    pub(crate) async fn r#type(limiter: &Limiter) -> Result<(), Limited> {
        Ok(())
    }

    #[rate_limit("2/h", name = "pages", limiter = limiter)]
    pub(crate) async fn read(limiter: &Limiter) -> Result<(), Limited> {
        Ok(())
    }

    #[rate_limit("2/h", name = "pages", limiter = limiter)]
    pub(crate) async fn list(limiter: &Limiter) -> Result<(), Limited> {
        Ok(())
    }
}

#[test]
fn functions_of_one_name_in_different_scopes_are_counted_separately() {
    use names::{Create, Page, Post};
    let limiter = new_limiter();
    let passed = [
        admitted(2, || names::create(&limiter)),
        admitted(2, || names::inner::create(&limiter)),
        admitted(2, || Post::create(&limiter)),
        admitted(2, || Page::<u8>::create(&limiter)),
        admitted(2, || Page::<u16>::create(&limiter)),
        admitted(2, || <Post as Create>::create(&limiter)),
        admitted(2, || <Page<u8> as Create>::create(&limiter)),
        admitted(2, || names::nested(&limiter)),
        admitted(2, || Page(0).create_by_default(&limiter)),
        admitted(2, || names::r#type(&limiter)),
    ];
    assert_eq!(passed, [1; 10]);
    assert_eq!(admitted(1, || <Page<u16> as Create>::create(&limiter)), 0, "one generic function");
}

#[test]
fn functions_with_one_rule_name_are_counted_together() {
    let limiter = new_limiter();
    assert_eq!(admitted(1, || names::read(&limiter)), 1);
    assert_eq!(admitted(2, || names::list(&limiter)), 1);
}

#[test]
fn a_rule_is_named_after_the_path_of_its_function() {
    // A rule of the same name and algorithm is the same state, so it sees the usage of the
    // function.
    let used = |name: &str, call: &dyn Fn(&Limiter)| {
        let memory = Arc::new(memory(ManualClock::default()));
        let policy = Policy::default();
        call(&Limiter::with_policy(memory.clone(), policy));
        let rule = Rule::new(name, [limit("1/h")]).unwrap();
        let limiter = Limiter::with_rules(memory, [rule]).unwrap();
        limiter.check(tidegate::Key::of(&[])).peek().now().unwrap().remaining() == 0
    };
    let call = |limiter: &Limiter| assert!(now_or_panic(names::create(limiter)).is_ok());
    assert!(used("it.rate_limit_attribute.names.create", &call));
    assert!(!used("it.rate_limit_attribute.names.inner.create", &call));
    let call = |limiter: &Limiter| assert!(now_or_panic(names::Post::create(limiter)).is_ok());
    assert!(used("it.rate_limit_attribute.names.Post.create", &call));
    let call = |limiter: &Limiter| assert!(now_or_panic(names::nested(limiter)).is_ok());
    assert!(used("it.rate_limit_attribute.names.nested.create", &call));
}

#[test]
fn two_attributes_on_one_function_both_count() {
    #[rate_limit("5/h", name = "all-posts", limiter = limiter)]
    #[rate_limit("2/h", key = name, limiter = limiter)]
    async fn post(limiter: &Limiter, name: &str) -> Result<(), Limited> {
        Ok(())
    }
    let limiter = new_limiter();
    let passed = ["a", "b", "c"].map(|name| admitted(3, || post(&limiter, name)));
    assert_eq!(passed, [2, 2, 1]);
}

// --- the annotated function ---------------------------------------------------------------------

struct Service {
    limiter: Limiter,
    tenant: String,
    served: u32,
}

trait Serve {
    async fn serve(&mut self, name: &str) -> Result<u32, Limited>;
}

impl Serve for Service {
    #[rate_limit("2/min", key = (self.tenant, name), limiter = &self.limiter)]
    async fn serve(&mut self, name: &str) -> Result<u32, Limited> {
        self.served += 1;
        Ok(self.served)
    }
}

impl Service {
    #[rate_limit("1/min", key = self.tenant, limiter = self.limiter)]
    async fn consume(self) -> Result<String, Limited> {
        Ok(self.tenant)
    }
}

#[test]
fn methods_can_use_self_and_keep_it() {
    let mut service = Service { limiter: new_limiter(), tenant: "acme".into(), served: 0 };
    let mut serve = || now_or_panic(service.serve("alice"));
    assert_eq!((serve().unwrap(), serve().unwrap()), (1, 2));
    assert!(serve().is_err());
    assert_eq!(now_or_panic(service.consume()).unwrap(), "acme");
}

#[test]
fn generics_lifetimes_patterns_and_bounds_stay_as_they_are() {
    struct Path<T>(T);

    #[rate_limit("9/min", key = (id, text, name), limiter = limiter)]
    async fn generic<'a, T, const N: usize>(
        limiter: &Limiter,
        Path(id): Path<u64>,
        (text, _): (&'a str, T),
        mut name: impl AsRef<str> + fmt::Display,
        rest: [T; N],
    ) -> Result<(&'a str, Option<T>), Limited>
    where
        T: Clone + Send,
        [T; N]: Sized,
    {
        #![expect(unused_variables, reason = "it must be kept")]
        use std::convert::identity;
        const NOTHING: u64 = 0;
        let unused = (&mut name, id + NOTHING);
        Ok((text, identity(rest.first().cloned())))
    }
    let limiter = new_limiter();
    let text = String::from("text");
    let call = generic(&limiter, Path(7), (&text, 1_u8), "name", [5_u8, 6]);
    assert_send(&call);
    assert_eq!(now_or_panic(call).unwrap(), ("text", Some(5)));
    let call = generic(&limiter, Path(7), (&text, "x"), "name".to_string(), []);
    assert_eq!(now_or_panic(call).unwrap(), ("text", None));
}

/// The values of a key need not be `Sync`, since no reference to them is kept across an await.
#[test]
fn the_future_stays_send() {
    struct NotSync(Cell<u64>);
    impl fmt::Display for NotSync {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.get().fmt(f)
        }
    }
    #[rate_limit("5/min", key = id, cost = id.0.get(), wait = "1s", limiter = limiter, or = limited.to_string())]
    async fn moved(limiter: Limiter, id: NotSync) -> String {
        id.to_string()
    }
    let call = moved(new_limiter(), NotSync(Cell::new(4)));
    assert_send(&call);
    assert_eq!(now_or_panic(call), "4");
}

#[test]
fn lints_see_the_function_as_it_was_written() {
    #[expect(unused_variables, reason = "it must stay unused")]
    #[rate_limit("5/min", limiter = limiter)]
    async fn unused(limiter: &Limiter, body: &str) -> Result<(), Limited> {
        Ok(())
    }
    #[expect(clippy::needless_return, reason = "the lint must still see it")]
    #[rate_limit("5/min", limiter = limiter)]
    async fn returns(limiter: &Limiter) -> Result<u8, Limited> {
        return Ok(5);
    }
    #[rate_limit("5/min", limiter = limiter, or = 0)]
    #[rustfmt::skip]
    async fn one_line(limiter: &Limiter) -> u8 { 5 }
    #[must_use = "attributes must be kept"]
    #[rate_limit("5/min", limiter = limiter, or = 0)]
    async fn kept(limiter: &Limiter) -> u8 {
        5
    }
    let limiter = new_limiter();
    assert!(now_or_panic(unused(&limiter, "")).is_ok());
    assert_eq!(
        now_or_panic(returns(&limiter)).unwrap()
            + now_or_panic(kept(&limiter))
            + now_or_panic(one_line(&limiter)),
        15
    );
}

#[test]
fn a_function_can_come_out_of_another_macro() {
    macro_rules! limited {
        ($name:ident, $limit:literal, $key:expr, $body:block) => {
            #[rate_limit($limit, key = $key, limiter = limiter)]
            async fn $name(limiter: &Limiter) -> Result<u8, Limited> $body
        };
    }
    limited!(once, "1/min", 1 + 1, { Ok(1) });
    limited!(twice, "2/min", "k", { Ok(2) });
    macro_rules! whole {
        ($limiter:expr, $item:item) => {
            #[rate_limit("3/min", limiter = $limiter)]
            $item
        };
    }
    whole! {
        limiter,
        async fn thrice(limiter: &Limiter) -> Result<u8, Limited> {
            Ok(3)
        }
    }
    let limiter = new_limiter();
    assert_eq!(admitted(5, || thrice(&limiter)), 3);
    assert_eq!(admitted(3, || once(&limiter)), 1);
    assert_eq!(admitted(3, || twice(&limiter)), 2);
}

#[test]
fn the_crate_may_have_another_name() {
    mod hidden {
        pub(super) use tidegate as gate;
    }
    #[rate_limit("1/min", crate = hidden::gate, limiter = limiter)]
    async fn renamed(limiter: &Limiter) -> Result<(), Limited> {
        Ok(())
    }
    assert!(now_or_panic(renamed(&new_limiter())).is_ok());
}

/// Names that could collide with the generated statements.
#[test]
fn names_of_the_user_do_not_collide() {
    #[derive(Debug)]
    struct Result;
    #[expect(non_upper_case_globals, reason = "it must shadow the name that the attribute uses")]
    const limiter: &str = "not a limiter";
    #[rate_limit("1/min", key = (visit, pass, limiter, SITE), limiter = by)]
    async fn own(by: &Limiter, visit: u8, pass: u8) -> core::result::Result<u8, Limited> {
        let limited = visit + pass;
        Ok(limited)
    }
    const SITE: u8 = 1;
    let by = new_limiter();
    assert_eq!(now_or_panic(own(&by, 1, 2)).unwrap(), 3);
    assert_eq!(admitted(1, || own(&by, 1, 2)), 0);
    assert_eq!(admitted(1, || own(&by, 2, 1)), 1);
    assert_eq!(format!("{Result:?}"), "Result");
}

// --- support -----------------------------------------------------------------------------------

fn assert_send(_: &impl Send) {}

/// How many of `calls` calls pass.
fn admitted<T, E, F: Future<Output = Result<T, E>>>(calls: u64, call: impl Fn() -> F) -> u64 {
    (0..calls).filter(|_| now_or_panic(call()).is_ok()).count() as u64
}

fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn refusal(limited: &Limited) -> Option<&Refusal> {
    match limited {
        Limited::NoAnswer(EngineError::Refused(refusal)) => Some(refusal),
        _ => None,
    }
}

/// When to retry.
fn denied(limited: Limited) -> Wait {
    match limited {
        Limited::Denied(decision) => decision.retry_after(),
        Limited::NoAnswer(error) => panic!("{error}"),
    }
}

/// A limiter without rules, on a clock that stands still.
fn new_limiter() -> Limiter {
    limiter_and_clock().0
}

fn limiter_and_clock() -> (Limiter, ManualClock) {
    let clock = ManualClock::default();
    (Limiter::with_policy(memory(clock.clone()), Policy::default()), clock)
}

fn memory(clock: ManualClock) -> Memory {
    Memory::builder().clock(clock).build()
}

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}
