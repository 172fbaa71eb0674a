//! Calls, put into the words of the scripts, and their replies.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::keys::{Found, Names, Secret, Tag, subject};
use crate::link::{Link, LinkError};
use crate::script::Covers;
use redis::Value;
use tidegate::{
    Answer, Call, CallId, Charge, Clock, Cost, Decision, Engine, EngineError, Expiry, Health,
    HoldId, Inspection, Key, Micros, Op, Refusal, RuleLimit, Source, Standing, SystemClock,
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
            record: String::new(),
        }
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
            let reply = self.ask(&Request::new("inspect"), &part, until).await?;
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
        let parts = parts(call.charges, secret);
        let mut request = Request::new(name_of(call.op));
        let mut made = None;
        if let Op::Hold { id, ttl, expiry } = call.op {
            check_ttl(ttl, &parts)?;
            // The record lies with the first subject, and the id says so.
            let id = id.at(parts[0].tag.0);
            let found = |part: &Part| Found::new(&part.limit, part.tag, part.cost.get());
            let record = Found::write(&parts.iter().map(found).collect::<Vec<_>>());
            request = Request { hold: Some(id), ttl, expiry, record, ..request };
            made = Some(id);
        }
        request.once = call.once.map(|id| self.once(&call, &parts, secret, id));
        let reply = self.ask(&request, &parts, until).await?;
        let mut decision = reply.decision(&parts)?;
        // Under an id it may be an earlier hold that is answered.
        decision.hold = made.and_then(|id| Some(reply.hold()?.at(id.place())));
        decision.verdicts = call
            .charges
            .iter()
            .filter_map(|charge| {
                let tag = subject(secret, charge.key);
                let same =
                    |part: &Part| part.tag == tag && part.limit.state() == charge.limit.state();
                let place = parts.iter().position(same)?;
                decision.verdicts.get(place).copied()
            })
            .collect();
        Ok(decision)
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
        let found = text.as_deref().and_then(Found::read).ok_or_else(unreadable)?;
        let part = |found: Found| {
            let limit = found.limit.parse().ok()?;
            Some(Part {
                limit: Arc::new(RuleLimit::stored(&found.rule, &found.state, limit)),
                tag: found.tag,
                cost: Cost::total(found.cost),
                who: String::new(),
            })
        };
        let parts: Vec<Part> =
            found.into_iter().map(part).collect::<Option<_>>().ok_or_else(unreadable)?;
        if request.op == "renew" {
            check_ttl(request.ttl, &parts)?;
        }
        self.ask(&request, &parts, until).await?.decision(&parts)
    }

    /// Runs the script, once more if the client's calendar did not hold Redis's now.
    async fn ask(
        &self,
        request: &Request<'_>,
        parts: &[Part],
        until: Instant,
    ) -> Result<Reply, EngineError> {
        let mut guess = self.clock().now();
        for _ in 0..2 {
            let reply = self.evaluate(request, parts, guess, until).await?;
            match reply.number(0)? {
                0 => guess = Micros::new(reply.number(1)?.unsigned_abs()),
                1 | 6 => return Ok(reply),
                2 => return Err(Refusal::UnknownHold.into()),
                3 | 5 => return Err(Refusal::IdReused.into()),
                4 => return Err(Refusal::AlreadySettled.into()),
                _ => return Err(unreadable()),
            }
        }
        Err(unreadable())
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
        let writes = request.op != "peek" && request.op != "inspect";
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
            Value::Array(values) => Ok(Reply(values)),
            _ => Err(unreadable()),
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
        }
        (keys, args)
    }

    /// Where the record of an idempotent call lies, and what stands for its content.
    fn once(
        &self,
        call: &Call<'_>,
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
            _ => name_of(call.op).to_string(),
        };
        // What was asked, not what it was charged to: a rule may have got another limit meanwhile.
        let asked = call.charges.iter().filter(|charge| charge.limit.is_first());
        let asked =
            asked.map(|c| format!("{} {} {}", subject(secret, c.key), c.limit.rule(), c.cost));
        let words: Vec<String> = [op].into_iter().chain(asked).collect();
        let request = secret.tag(words.iter().map(String::as_bytes));
        (self.names.once(parts[0].tag, name), request)
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
        Self {
            limit: charge.limit.clone(),
            tag: subject(secret, charge.key),
            cost: charge.cost,
            who: charge.who.unwrap_or_default().into(),
        }
    }
}

/// The charges of a call; those to the same limit and key are added up.
fn parts(charges: &[Charge<'_>], secret: &Secret) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::with_capacity(charges.len());
    for charge in charges {
        let part = Part::new(charge, secret);
        let same =
            |other: &&mut Part| other.tag == part.tag && other.limit.state() == part.limit.state();
        match parts.iter_mut().find(same) {
            Some(same) => same.cost = same.cost.saturating_add(part.cost),
            None => parts.push(part),
        }
    }
    parts
}

/// The word for an operation.
fn name_of(op: Op) -> &'static str {
    match op {
        Op::Check => "check",
        Op::Record => "record",
        Op::Refund => "refund",
        Op::Reset => "reset",
        Op::Hold { .. } => "hold",
        Op::Settle { .. } => "settle",
        Op::Renew { .. } => "renew",
        _ => "peek",
    }
}

/// A holder may stay for a whole lease, however long that is.
fn check_ttl(ttl: Micros, parts: &[Part]) -> Result<(), EngineError> {
    let lease = parts.iter().filter_map(|part| part.limit.limit().lease()).max();
    if ttl == Micros::ZERO || ttl > HoldId::MAX_TTL.max(lease.unwrap_or_default()) {
        return Err(Refusal::HoldLength.into());
    }
    Ok(())
}

/// What a script returned.
#[derive(Debug)]
struct Reply(Vec<Value>);

impl Reply {
    const HEAD: usize = 5;
    const PER_PART: usize = 7;

    fn number(&self, place: usize) -> Result<i64, EngineError> {
        match self.0.get(place) {
            Some(Value::Int(number)) => Ok(*number),
            _ => Err(unreadable()),
        }
    }

    fn natural(&self, place: usize) -> Result<u64, EngineError> {
        u64::try_from(self.number(place)?).map_err(|_| unreadable())
    }

    fn hold(&self) -> Option<HoldId> {
        match self.0.get(4) {
            Some(Value::BulkString(id)) => std::str::from_utf8(id).ok()?.parse().ok(),
            _ => None,
        }
    }

    fn verdict(&self, part: usize, limit: &RuleLimit) -> Result<Verdict, EngineError> {
        let at = Self::HEAD + Self::PER_PART * part;
        Ok(Verdict {
            allowed: self.number(at)? == 1,
            retry_after: match self.number(at + 1)? {
                -1 => Wait::Never,
                _ => Wait::For(Micros::new(self.natural(at + 1)?)),
            },
            delay: Micros::new(self.natural(at + 2)?),
            limit: limit.limit().capacity(),
            remaining: self.natural(at + 3)?,
            reset_after: Micros::new(self.natural(at + 4)?),
        })
    }

    fn decision(&self, parts: &[Part]) -> Result<Decision, EngineError> {
        let verdicts = parts.iter().enumerate().map(|(i, part)| self.verdict(i, &part.limit));
        let mut decision = Decision::new(Source::Redis, verdicts.collect::<Result<_, _>>()?);
        decision.refunded = Cost::total(self.natural(2)?);
        decision.expired = self.number(3)? == 1;
        decision.repeated = self.number(0)? == 6;
        Ok(decision)
    }

    fn inspection(&self, limit: &RuleLimit) -> Result<Inspection, EngineError> {
        let at = Self::HEAD;
        let mut entries = Vec::new();
        for pair in self.0.get(at + Self::PER_PART..).unwrap_or_default().chunks(2) {
            let [Value::Int(permits), Value::BulkString(who)] = pair else {
                return Err(unreadable());
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

fn unreadable() -> EngineError {
    EngineError::unavailable(Unreadable)
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
