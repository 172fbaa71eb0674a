//! Calls, put into the words of the scripts, and their replies.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::keys::{Found, Names, Secret, Tag, subject};
use crate::link::{Link, LinkError};
use crate::script::Covers;
use crate::unheard::Unheard;
use redis::Value;
use tidegate::{
    Algorithm, Answer, Call, CallId, Charge, Clock, Cost, Decision, Engine, EngineError, Expiry,
    Health, HoldId, Inspection, Key, Micros, Op, Refusal, RuleLimit, Source, Standing, SystemClock,
    Verdict, Wait,
};

/// Counts in Redis or Valkey, for a fleet.
pub struct Redis {
    pub(crate) link: Link,
    pub(crate) names: Names,
    pub(crate) configured_secret: Option<Secret>,
    pub(crate) agreed: Mutex<Option<Agreed>>,
    /// Whose instants are sent instead of being read by Redis; for tests.
    pub(crate) test_clock: Option<Arc<dyn Clock>>,
}

/// The secret that this engine and its namespace agree on, and on which connection they did.
#[derive(Clone)]
pub(crate) struct Agreed {
    secret: Secret,
    stored: Vec<u8>,
    generation: u64,
    asked: Instant,
}

/// One limit on one subject, with all that a call charges to it.
struct Part {
    limit: Arc<RuleLimit>,
    tag: Tag,
    cost: Cost,
    who: String,
}

/// What a call is about, beside its parts.
struct Request<'a> {
    op: &'a str,
    hold: Option<HoldId>,
    ttl: Micros,
    expiry: Expiry,
    settle: Option<Cost>,
    once: Option<(String, Tag)>,
    /// The hold that was made under this id, once Redis has asked for it.
    earlier: Option<HoldId>,
    record: String,
}

impl<'a> Request<'a> {
    fn new(op: &'a str) -> Self {
        Self {
            op,
            hold: None,
            ttl: Micros::ZERO,
            expiry: Expiry::Release,
            settle: None,
            once: None,
            earlier: None,
            record: String::new(),
        }
    }

    fn writes(&self) -> bool {
        self.op != "peek" && self.op != "inspect"
    }
}

impl Engine for Redis {
    fn decide<'a>(&'a self, call: Call<'a>) -> Answer<'a, Decision> {
        Answer::Later(Box::pin(async move {
            call.validate()?;
            // One deadline, however many commands it takes.
            let until = self.link.deadline();
            match call.op {
                Op::Settle { id, cost } => {
                    let request =
                        Request { settle: cost, hold: Some(id), ..Request::new("settle") };
                    self.about_hold(id, request, until).await
                }
                Op::Renew { id, ttl } => {
                    let request = Request { ttl, hold: Some(id), ..Request::new("renew") };
                    self.about_hold(id, request, until).await
                }
                _ => self.run(call, until).await,
            }
        }))
    }

    fn inspect<'a>(&'a self, limit: &'a Arc<RuleLimit>, key: Key<'a>) -> Answer<'a, Inspection> {
        Answer::Later(Box::pin(async move {
            let charge = Charge { limit, key, cost: Cost::ZERO, who: None };
            Call { op: Op::Peek, charges: &[charge], once: None }.validate()?;
            let until = self.link.deadline();
            let secret = self.secret(until).await?;
            let part = [Part::new(&charge, &secret)];
            let reply = self.ask(Request::new("inspect"), &part, until).await?;
            reply.inspection(limit)
        }))
    }

    fn health(&self) -> Health {
        let mut health = Health::up(None, 0);
        health.up = self.link.is_up();
        health
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.test_clock.clone().unwrap_or_else(|| Arc::new(SystemClock))
    }
}

impl Redis {
    async fn run(&self, call: Call<'_>, until: Instant) -> Result<Decision, EngineError> {
        let secret = &self.secret(until).await?;
        let (parts, places) = parts(call.charges, secret);
        let held = parts.iter().filter(|part| call.op.sets_aside(part.limit.limit()));
        let held: Vec<&Part> = held.collect();
        // Whoever enters where nobody counts holders only passes.
        let only_passes = matches!(call.op, Op::Enter { .. }) && held.is_empty();
        let mut request = Request::new(name_of(if only_passes { Op::Check } else { call.op })?);
        let mut made = None;
        if let (Some((id, ttl, expiry)), Some(first)) = (call.op.hold(), held.first()) {
            check_ttl(ttl, held.iter().copied())?;
            // The record lies with the first subject, and the id says so.
            let id = id.at(first.tag.0);
            let found = |part: &&Part| Found::new(&part.limit, part.tag, part.cost.get());
            let record = Found::write(&held.iter().map(found).collect::<Vec<_>>());
            request = Request { hold: Some(id), ttl, expiry, record, ..request };
            made = Some(id);
        }
        request.once = call.once.map(|id| self.once(&call, request.op, &parts, secret, id));
        // Under an id, whoever asks again gets the same hold.
        let unheard = made.filter(|_| call.once.is_none()).map(|id| Unheard::new(self, id));
        let reply = self.ask(request, &parts, until).await;
        let decision = reply.and_then(|reply| reply.decision_on(&call, &parts, &places, made));
        if let Some(unheard) = unheard {
            unheard.heard(&decision);
        }
        decision
    }

    /// Finds a hold by its id, and asks about it with the limits it was made for.
    async fn about_hold(
        &self,
        id: HoldId,
        request: Request<'_>,
        until: Instant,
    ) -> Result<Decision, EngineError> {
        let record = self.names.hold(id);
        let mut cmd = redis::cmd("HGET");
        cmd.arg(&record).arg("b");
        let found = self.link.call_until(until, &cmd).await.map_err(|e| unavailable(e, false))?;
        let text = match found {
            Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
            _ => return Err(Refusal::UnknownHold.into()),
        };
        let unreadable = || EngineError::unavailable(Unreadable);
        let found = text.as_deref().and_then(Found::read).ok_or_else(unreadable)?;
        let part = |found: Found| {
            let limit = found.limit.parse().ok()?;
            Some(Part {
                limit: Arc::new(RuleLimit::stored(&found.rule, &found.policy, &found.state, limit)),
                tag: found.tag,
                cost: Cost::total(found.cost),
                who: String::new(),
            })
        };
        let parts: Vec<Part> =
            found.into_iter().map(part).collect::<Option<_>>().ok_or_else(unreadable)?;
        if request.op == "renew" {
            check_ttl(request.ttl, parts.iter())?;
        }
        let mut decision = self.ask(request, &parts, until).await?.decision(&parts)?;
        let deciding = parts.into_iter().filter(|part| !part.limit.is_shadow());
        decision.details_mut().held = deciding.map(|part| part.limit).collect();
        Ok(decision)
    }

    /// Runs the script; once more if the client's calendar did not hold Redis's now, and if it is
    /// about an earlier hold, whose record has to be named.
    async fn ask(
        &self,
        mut request: Request<'_>,
        parts: &[Part],
        until: Instant,
    ) -> Result<Reply, EngineError> {
        const ATTEMPTS: usize = 4;
        let mut guess = self.clock().now();
        for _ in 0..ATTEMPTS {
            let reply = self.evaluate(&request, parts, guess, until).await?;
            match reply.number(0)? {
                0 => guess = Micros::new(reply.natural(1)?),
                1 | 6 => return Ok(reply),
                2 => return Err(Refusal::UnknownHold.into()),
                3 | 5 => return Err(Refusal::IdReused.into()),
                4 => return Err(Refusal::AlreadySettled.into()),
                7 => {
                    let earlier = reply.id(2).ok_or_else(|| reply.unreadable())?;
                    request.earlier = Some(earlier.at(parts[0].tag.0));
                }
                _ => return Err(reply.unreadable()),
            }
        }
        // Nothing was written by any of them.
        Err(EngineError::unavailable(Unreadable))
    }

    async fn evaluate(
        &self,
        request: &Request<'_>,
        parts: &[Part],
        guess: Micros,
        until: Instant,
    ) -> Result<Reply, EngineError> {
        let covers = Covers::of(parts.iter().map(|part| part.limit.limit().algorithm()));
        let script = covers.script();
        let writes = request.writes();
        let (keys, args) = self.words(request, parts, guess);
        let command = |name: &str, script: &str| {
            let mut cmd = redis::cmd(name);
            cmd.arg(script).arg(keys.len()).arg(&keys).arg(&args);
            cmd
        };
        let answer = match self.link.call_until(until, &command("EVALSHA", &script.digest)).await {
            // Nothing has run: the server has not seen the script yet.
            Err(LinkError::Reply(error)) if error.code() == Some("NOSCRIPT") => {
                self.link.call_until(until, &command("EVAL", &script.text)).await
            }
            answer => answer,
        };
        match answer.map_err(|error| unavailable(error, writes))? {
            Value::Array(values) => Ok(Reply { values, writes }),
            _ => Err(unreadable(writes)),
        }
    }

    /// The keys and arguments of the script.
    fn words(
        &self,
        request: &Request<'_>,
        parts: &[Part],
        guess: Micros,
    ) -> (Vec<String>, Vec<Vec<u8>>) {
        let mut keys = Vec::with_capacity(3 * parts.len() + 2);
        for part in parts {
            let state = self.names.state(part.tag, part.limit.state());
            keys.push(state.clone());
            keys.push(format!("{state}:log"));
            keys.push(format!("{state}:holds"));
        }
        keys.extend(request.hold.map(|id| self.names.hold(id)));
        keys.extend(request.once.as_ref().map(|(key, _)| key.clone()));
        keys.extend(request.earlier.map(|id| self.names.hold(id)));

        let mut args: Vec<Vec<u8>> = Vec::with_capacity(10 + 12 * parts.len());
        let mut push = |word: String| args.push(word.into_bytes());
        push("1".into());
        push(request.op.into());
        let instant = self.test_clock.as_ref().map(|clock| clock.now().get().to_string());
        push(instant.unwrap_or_default());
        push(request.hold.map_or_else(String::new, |id| format!("{:032x}", id.get())));
        push(request.ttl.get().to_string());
        push(u8::from(request.expiry == Expiry::Charge).to_string());
        push(request.settle.map_or_else(String::new, |cost| cost.to_string()));
        push(request.once.as_ref().map_or_else(String::new, |(_, request)| request.to_string()));
        push(request.record.clone());
        push(parts.len().to_string());
        for part in parts {
            let (algorithm, numbers) = part.limit.limit().numbers();
            push(algorithm.to_string());
            numbers.into_iter().for_each(|number| push(number.to_string()));
            let boundaries = part.limit.boundaries(guess);
            push(boundaries.len().to_string());
            boundaries.into_iter().for_each(|bound| push(bound.get().to_string()));
            push(part.cost.to_string());
            push(part.who.clone());
            push(if part.limit.is_shadow() { "shadow" } else { "" }.into());
        }
        (keys, args)
    }

    /// Where the record of an idempotent call lies, and what stands for its content.
    fn once(
        &self,
        call: &Call<'_>,
        op: &str,
        parts: &[Part],
        secret: &Secret,
        id: CallId<'_>,
    ) -> (String, Tag) {
        let rule = call.charges.first().map_or("", |charge| charge.limit.rule());
        let name = secret.tag([rule.as_bytes(), id.as_str().as_bytes()].into_iter());
        let op = match call.op {
            // The id of a hold is drawn anew on every attempt.
            Op::Hold { ttl, expiry: Expiry::Release, .. } => format!("hold {}", ttl.get()),
            Op::Hold { ttl, expiry: Expiry::Charge, .. } => format!("lease {}", ttl.get()),
            // A peek under an id tells what the check under it was answered, or would be.
            Op::Peek => "check".into(),
            _ => op.into(),
        };
        // What was asked, not what it was charged to: a rule may have got another limit meanwhile.
        let asked = call.charges.iter().filter(|charge| charge.limit.is_first());
        let asked =
            asked.map(|c| format!("{} {} {}", subject(secret, c.key), c.limit.rule(), c.cost));
        let words: Vec<String> = [op].into_iter().chain(asked).collect();
        let request = secret.tag(words.iter().map(String::as_bytes));
        (self.names.once(parts[0].tag, name), request)
    }

    /// An engine on the same connection, for what outlives a call.
    pub(crate) fn twin(&self) -> Self {
        Self {
            link: self.link.clone(),
            names: self.names.clone(),
            configured_secret: self.configured_secret.clone(),
            agreed: Mutex::new(None),
            test_clock: self.test_clock.clone(),
        }
    }

    /// What keys the hash of subjects: as configured, or as the first process has stored it. Asked
    /// again on every new connection, which may lead to a server that has another, and every
    /// second, since somebody may have flushed it: whoever still knows it sets it again.
    async fn secret(&self, until: Instant) -> Result<Secret, EngineError> {
        const ASK_AGAIN: Duration = Duration::from_secs(1);
        let agreed = self.agreed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let generation = self.link.generation();
        let is_fresh = |a: &&Agreed| a.generation == generation && a.asked.elapsed() < ASK_AGAIN;
        if let Some(agreed) = agreed.as_ref().filter(is_fresh) {
            return Ok(agreed.secret.clone());
        }
        let (ours, stored) = match (agreed, &self.configured_secret) {
            (Some(agreed), _) => (Some(agreed.secret), agreed.stored),
            (None, Some(secret)) => {
                let check = secret.tag([&b"tidegate"[..]].into_iter());
                (Some(secret.clone()), format!("check:{check}").into_bytes())
            }
            (None, None) => {
                let mut random = [0; 32];
                getrandom::fill(&mut random).map_err(EngineError::unavailable)?;
                (None, [b"secret:", &random[..]].concat())
            }
        };
        let found = self.set_if_absent(&self.names.secret(), &stored, until).await?;
        let secret = match (ours, found.strip_prefix(b"secret:")) {
            (Some(secret), _) if found == stored => secret,
            (None, Some(secret)) => Secret::new(secret),
            _ => return Err(EngineError::unavailable(SecretMismatch)),
        };
        let generation = self.link.generation();
        let asked = Instant::now();
        let agreed = Agreed { secret: secret.clone(), stored: found, generation, asked };
        *self.agreed.lock().unwrap_or_else(PoisonError::into_inner) = Some(agreed);
        Ok(secret)
    }

    /// Sets a value if there is none, and returns the one that is there then.
    async fn set_if_absent(
        &self,
        key: &str,
        value: &[u8],
        until: Instant,
    ) -> Result<Vec<u8>, EngineError> {
        let mut get = redis::cmd("GET");
        get.arg(key);
        let mut set = redis::cmd("SET");
        set.arg(key).arg(value).arg("NX");
        // Read first: a full store takes no write, and needs none.
        for _ in 0..2 {
            let found = self.link.call_until(until, &get).await;
            if let Value::BulkString(found) = found.map_err(|error| unavailable(error, false))? {
                return Ok(found);
            }
            self.link.call_until(until, &set).await.map_err(|error| unavailable(error, false))?;
        }
        Ok(value.to_vec())
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("names", &self.names).finish_non_exhaustive()
    }
}

impl Part {
    fn new(charge: &Charge<'_>, secret: &Secret) -> Self {
        // Only a log keeps who it was.
        let keeps = charge.limit.limit().algorithm() == Algorithm::SlidingLog;
        Self {
            limit: charge.limit.clone(),
            tag: subject(secret, charge.key),
            cost: charge.cost,
            who: charge.who.filter(|_| keeps).unwrap_or_default().into(),
        }
    }
}

/// The charges of a call, and the place of each; those to the same limit and key are added up.
fn parts(charges: &[Charge<'_>], secret: &Secret) -> (Vec<Part>, Vec<usize>) {
    let mut parts: Vec<Part> = Vec::with_capacity(charges.len());
    let mut places = Vec::with_capacity(charges.len());
    for charge in charges {
        let part = Part::new(charge, secret);
        let same =
            |other: &Part| other.tag == part.tag && other.limit.state() == part.limit.state();
        let place = parts.iter().position(same).unwrap_or(parts.len());
        match parts.get_mut(place) {
            Some(same) => same.cost = same.cost.saturating_add(part.cost),
            None => parts.push(part),
        }
        places.push(place);
    }
    (parts, places)
}

/// The word for an operation.
fn name_of(op: Op) -> Result<&'static str, EngineError> {
    Ok(match op {
        Op::Check => "check",
        Op::Peek => "peek",
        Op::Record => "record",
        Op::Refund => "refund",
        Op::Reset => "reset",
        Op::Hold { .. } => "hold",
        Op::Enter { .. } => "enter",
        Op::Visit { .. } => "visit",
        Op::Settle { .. } => "settle",
        Op::Renew { .. } => "renew",
        _ => return Err(EngineError::unavailable(UnknownOperation)),
    })
}

/// A holder may stay for a whole lease, however long that is.
fn check_ttl<'a>(ttl: Micros, parts: impl Iterator<Item = &'a Part>) -> Result<(), EngineError> {
    let lease = parts.filter_map(|part| part.limit.limit().lease()).max();
    if ttl == Micros::ZERO || ttl > HoldId::MAX_TTL.max(lease.unwrap_or_default()) {
        return Err(Refusal::HoldLength.into());
    }
    Ok(())
}

/// What a script returned.
#[derive(Debug)]
struct Reply {
    values: Vec<Value>,
    /// The script may have written.
    writes: bool,
}

impl Reply {
    const HEAD: usize = 5;
    const PER_PART: usize = 7;

    fn unreadable(&self) -> EngineError {
        unreadable(self.writes)
    }

    fn number(&self, place: usize) -> Result<i64, EngineError> {
        match self.values.get(place) {
            Some(Value::Int(number)) => Ok(*number),
            _ => Err(self.unreadable()),
        }
    }

    fn natural(&self, place: usize) -> Result<u64, EngineError> {
        u64::try_from(self.number(place)?).map_err(|_| self.unreadable())
    }

    fn id(&self, place: usize) -> Option<HoldId> {
        match self.values.get(place) {
            Some(Value::BulkString(id)) => std::str::from_utf8(id).ok()?.parse().ok(),
            _ => None,
        }
    }

    fn repeats(&self) -> Result<bool, EngineError> {
        Ok(self.number(0)? == 6)
    }

    /// The parts of a reply that tells the capacity of each.
    fn parts_with_capacity(&self) -> usize {
        self.values.len().saturating_sub(Self::HEAD) / (Self::PER_PART + 1)
    }

    /// The capacity of a part, in a reply that tells it.
    fn capacity(&self, part: usize) -> Result<u64, EngineError> {
        self.natural(Self::HEAD + Self::PER_PART * self.parts_with_capacity() + part)
    }

    fn verdict(&self, part: usize, limit: u64) -> Result<Verdict, EngineError> {
        let at = Self::HEAD + Self::PER_PART * part;
        Ok(Verdict {
            allowed: self.number(at)? == 1,
            retry_after: match self.number(at + 1)? {
                -1 => Wait::Never,
                _ => Wait::For(Micros::new(self.natural(at + 1)?)),
            },
            delay: Micros::new(self.natural(at + 2)?),
            limit,
            remaining: self.natural(at + 3)?,
            reset_after: Micros::new(self.natural(at + 4)?),
        })
    }

    /// The decision on a call whose charges lie at these places among the parts.
    fn decision_on(
        &self,
        call: &Call<'_>,
        parts: &[Part],
        places: &[usize],
        made: Option<HoldId>,
    ) -> Result<Decision, EngineError> {
        let mut decision = self.head()?;
        // Under an id it may be an earlier hold that is answered.
        decision.details_mut().hold = made.and_then(|id| Some(self.id(4)?.at(id.place())));
        if decision.repeated() {
            decision.verdicts.extend(self.kept_verdicts(parts, places)?);
            return Ok(decision);
        }
        for (charge, place) in call.charges.iter().zip(places) {
            let verdict = self.verdict(*place, charge.limit.limit().capacity())?;
            decision.push(charge.limit, verdict);
        }
        Ok(decision)
    }

    /// What those said that decided, when they did. Meanwhile the rule may have got other limits.
    fn kept_verdicts(&self, parts: &[Part], places: &[usize]) -> Result<Vec<Verdict>, EngineError> {
        let count = self.parts_with_capacity();
        let deciding: Vec<usize> =
            (0..parts.len()).filter(|place| !parts[*place].limit.is_shadow()).collect();
        let kept = |place| self.verdict(place, self.capacity(place)?);
        if count != deciding.len() {
            return (0..count).map(kept).collect();
        }
        // One for each charge, though some share a part.
        let of_charges = places.iter().filter_map(|place| deciding.iter().position(|d| d == place));
        of_charges.map(kept).collect()
    }

    /// The decision on a hold, by the limits that count now.
    fn decision(&self, parts: &[Part]) -> Result<Decision, EngineError> {
        let mut decision = self.head()?;
        for (place, part) in parts.iter().enumerate() {
            decision.push(&part.limit, self.verdict(place, self.capacity(place)?)?);
        }
        Ok(decision)
    }

    /// The decision without its verdicts.
    fn head(&self) -> Result<Decision, EngineError> {
        let mut decision = Decision::new(Source::Redis, Default::default());
        decision.details_mut().refunded = Cost::total(self.natural(2)?);
        decision.details_mut().expired = self.number(3)? == 1;
        decision.details_mut().repeated = self.repeats()?;
        Ok(decision)
    }

    fn inspection(&self, limit: &RuleLimit) -> Result<Inspection, EngineError> {
        let at = Self::HEAD;
        let mut entries = Vec::new();
        for pair in self.values.get(at + Self::PER_PART..).unwrap_or_default().chunks(2) {
            let [Value::Int(permits), Value::BulkString(who)] = pair else {
                return Err(self.unreadable());
            };
            let who = String::from_utf8_lossy(who);
            let who = (!who.is_empty()).then(|| who.into());
            entries.push((who, permits.unsigned_abs()));
        }
        Ok(Inspection {
            source: Source::Redis,
            standing: Standing {
                used: self.natural(at + 5)?,
                held: self.natural(at + 6)?,
                remaining: self.natural(at + 3)?,
                reset_after: Micros::new(self.natural(at + 4)?),
            },
            limit: limit.limit().capacity(),
            entries,
            shared: false,
        })
    }
}

/// A call that was sent and not answered may have run; one that only reads has changed nothing.
fn unavailable(error: LinkError, writes: bool) -> EngineError {
    let ambiguous = matches!(error, LinkError::TimedOut | LinkError::Broken(_)) && writes;
    let cause = Arc::new(error);
    if ambiguous { EngineError::Ambiguous(cause) } else { EngineError::Unavailable(cause) }
}

/// What wrote and cannot be understood has been charged, perhaps.
fn unreadable(writes: bool) -> EngineError {
    let cause = Arc::new(Unreadable);
    if writes { EngineError::Ambiguous(cause) } else { EngineError::Unavailable(cause) }
}

/// A reply that no script of ours gives.
#[derive(Debug)]
struct Unreadable;

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "redis answered what no script of this version answers; is it another version's?",
        )
    }
}

impl std::error::Error for Unreadable {}

/// An operation that came after this engine.
#[derive(Debug)]
struct UnknownOperation;

impl fmt::Display for UnknownOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the engine for redis does not know this operation; use a newer one")
    }
}

impl std::error::Error for UnknownOperation {}

/// Two ideas of the secret in one namespace.
#[derive(Debug)]
struct SecretMismatch;

impl fmt::Display for SecretMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the secret differs from the one this namespace was used with; \
             set the same secret everywhere, or use another namespace",
        )
    }
}

impl std::error::Error for SecretMismatch {}
