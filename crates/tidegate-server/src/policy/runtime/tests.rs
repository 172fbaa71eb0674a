//! Random histories of servers and a store that loses fields; all must agree in the end.

use std::collections::BTreeMap;

use tidegate::Micros;

use super::copy::RuntimeCopy;
use super::field::RuntimeField;
use super::stamp::Stamp;
use super::store::StoreContents;

const SERVERS: usize = 4;
const FIELDS: u64 = 5;

/// Servers with their copies, one store, and what it was before each change.
struct World {
    random: u64,
    now: Micros,
    store: StoreContents,
    before: Vec<StoreContents>,
    servers: Vec<RuntimeCopy>,
    is_cut_off: [bool; SERVERS],
    /// Acknowledged changes in the order of time, by stamp.
    order: BTreeMap<Stamp, u64>,
    lost: u64,
    clock: StoreClock,
}

/// The clock of the store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StoreClock {
    Steady,
    /// A failover may set it back or ahead.
    Jumping,
}

impl World {
    fn new(seed: u64, clock: StoreClock) -> Self {
        Self {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            now: Micros::from_secs(1_700_000_000),
            store: StoreContents::default(),
            before: Vec::new(),
            servers: vec![RuntimeCopy::default(); SERVERS],
            is_cut_off: [false; SERVERS],
            order: BTreeMap::new(),
            lost: 0,
            clock,
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % bound
    }

    /// As the poll of a server: compare, read, merge, offer.
    fn poll(&mut self, server: usize) {
        let version = self.store.version(self.now);
        if !self.servers[server].poll(&version) {
            return;
        }
        let nonce = self.below(1 << 32) as u32;
        let merged = self.servers[server].merge(&version, self.store.stored(), nonce);
        assert!(merged.unreadable.is_empty());
        if let Some(repair) = merged.repair {
            assert!(self.store.write(&repair), "no other server was faster");
            self.servers[server].confirm(&self.store.version(self.now));
        }
    }

    /// Sets or deletes a field. The reply may be lost, or come after the next change of another
    /// server, which the head prevents.
    fn change(&mut self, server: usize) {
        self.poll(server);
        let version = self.store.version(self.now);
        let name = format!("rule:{}", self.below(FIELDS));
        let nonce = self.below(1 << 32) as u32;
        let (stamp, mut write) = self.servers[server].write(&version, nonce, vec![], vec![]);
        let spec = (self.below(3) > 0).then(|| nonce.into());
        let field = RuntimeField {
            stamp,
            by: String::new(),
            at: self.now,
            until: None,
            replaces: None,
            epoch: None,
            spec,
            text: String::new(),
        };
        let field = field.encoded();
        write.set.push((name.clone(), field.text.clone()));
        if self.below(8) == 0 {
            let other = (server + 1) % SERVERS;
            self.poll(other);
            let current = self.store.version(self.now);
            let (_, overtaking) = self.servers[other].write(&current, 0, vec![], vec![]);
            assert!(self.store.write(&overtaking));
            assert!(!self.store.write(&write), "the head is another one");
            return;
        }
        self.before.push(self.store.clone());
        assert!(self.store.write(&write));
        self.servers[server].insert(name, field);
        self.servers[server].confirm(&self.store.version(self.now));
        self.order.insert(stamp, self.now.get());
    }

    fn step(&mut self) {
        self.now = self.now.saturating_add(Micros::new(1 + self.below(2_000_000)));
        if self.clock == StoreClock::Jumping && self.below(10) == 0 {
            self.now = Micros::from_secs(1_700_000_000 + self.below(600));
        }
        let server = self.below(SERVERS as u64) as usize;
        match self.below(20) {
            0 => self.is_cut_off[server] = !self.is_cut_off[server],
            1 => self.servers[server] = RuntimeCopy::default(),
            2 => {
                self.lost += 1;
                self.store = StoreContents::default();
            }
            3 if !self.before.is_empty() => {
                self.lost += 1;
                let tail = self.below(self.before.len().min(5) as u64) as usize;
                self.before.truncate(self.before.len() - tail);
                self.store = self.before.last().cloned().unwrap_or_default();
            }
            4..=9 if !self.is_cut_off[server] => self.change(server),
            _ if !self.is_cut_off[server] => self.poll(server),
            _ => {}
        }
    }

    /// All stamps of each field that a server or the store has.
    fn known(&self) -> BTreeMap<String, Vec<Stamp>> {
        let mut known: BTreeMap<String, Vec<Stamp>> = BTreeMap::new();
        let stored = self.store.fields.iter();
        let stored = stored.map(|(name, text)| (name.clone(), RuntimeField::read(text).unwrap()));
        let copies = self.servers.iter().flat_map(RuntimeCopy::fields);
        let copies = copies.map(|(name, field)| (name.to_string(), field.clone()));
        for (name, field) in stored.chain(copies) {
            known.entry(name).or_default().push(field.stamp);
        }
        known
    }
}

#[test]
fn all_servers_agree_on_the_last_known_change_of_every_field() {
    let mut losses = 0;
    for (seed, clock) in
        (1..=1_000).flat_map(|seed| [(seed, StoreClock::Steady), (seed, StoreClock::Jumping)])
    {
        let mut world = World::new(seed, clock);
        (0..60).for_each(|_| world.step());
        let known = world.known();
        for _ in 0..2 {
            (0..SERVERS).for_each(|server| world.poll(server));
        }
        let agreed = world.servers[0].clone();
        for server in &world.servers {
            assert!(server.fields().eq(agreed.fields()), "seed {seed}: servers differ");
        }
        let stored: Vec<(String, String)> = world.store.stored();
        let own = agreed.fields().map(|(name, field)| (name.to_string(), field.text.clone()));
        assert!(own.eq(stored), "seed {seed}: the store differs");
        for (name, stamps) in known {
            let last = match clock {
                StoreClock::Steady => stamps.iter().max_by_key(|stamp| world.order[*stamp]),
                StoreClock::Jumping => stamps.iter().max(),
            };
            assert_eq!(agreed.get(&name).map(|field| field.stamp), last.copied(), "seed {seed}");
        }
        losses += world.lost;
    }
    assert!(losses > 5_000, "the store lost fields {losses} times");
}

#[test]
fn a_deletion_is_forgotten_after_its_retention_and_does_not_come_back() {
    let mut world = World::new(1, StoreClock::Steady);
    let name = "rule:x";
    for spec in [Some(1.into()), None] {
        let version = world.store.version(world.now);
        let (stamp, mut write) = world.servers[0].write(&version, 0, vec![], vec![]);
        let (by, at) = (String::new(), world.now);
        let text = String::new();
        let field =
            RuntimeField { stamp, by, at, until: None, replaces: None, epoch: None, spec, text };
        let field = field.encoded();
        write.set.push((name.into(), field.text.clone()));
        assert!(world.store.write(&write));
        world.servers[0].insert(name.into(), field.clone());
        world.servers[0].confirm(&world.store.version(world.now));
        if field.spec.is_some() {
            world.poll(1);
        }
    }
    world.poll(2);
    assert!(world.servers[1].get(name).unwrap().spec.is_some(), "cut off before the deletion");
    world.now = world.now.saturating_add(RuntimeField::RETENTION);
    world.poll(0);
    assert!(world.store.fields.is_empty() && world.servers[0].get(name).is_none());
    (0..SERVERS).for_each(|server| world.poll(server));
    assert!(world.servers.iter().all(|server| server.get(name).is_none()));
    assert!(world.store.fields.is_empty(), "the copy of a week ago is not offered");
}

#[test]
fn an_ended_override_is_kept_for_its_retention() {
    let mut world = World::new(1, StoreClock::Steady);
    let until = world.now.saturating_add(Micros::from_secs(60));
    let (stamp, mut write) =
        world.servers[0].write(&world.store.version(world.now), 0, vec![], vec![]);
    let (by, at, text) = (String::new(), world.now, String::new());
    let spec = Some(1.into());
    let field =
        RuntimeField { stamp, by, at, until: Some(until), replaces: None, epoch: None, spec, text };
    write.set.push(("override:api:k".into(), field.encoded().text));
    assert!(world.store.write(&write));
    world.poll(1);
    for (after, kept) in [(0, 1), (RuntimeField::RETENTION.get() - 1, 1), (1, 0)] {
        world.now = world.now.saturating_add(Micros::new(after));
        if after == 0 {
            world.now = until;
        }
        (0..SERVERS).for_each(|server| world.poll(server));
        assert_eq!(world.store.fields.len(), kept);
        assert!(world.servers.iter().all(|server| server.fields().count() == kept));
    }
}
