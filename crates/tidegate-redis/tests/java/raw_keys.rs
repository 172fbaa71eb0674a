//! Reads and writes the keys of a limiter directly.

use crate::fixture::{Fixture, NAME};

impl Fixture {
    /// Adds entries of `permits` each, `in_each_ms` of them per ms, starting at `from`.
    pub(crate) fn fill(&self, entries: u64, permits: u64, from: u64, in_each_ms: u64) {
        let fill = format!(
            "for i = 0, {entries} - 1 do redis.call('ZADD', '{{orders}}:permits', \
             string.format('%.0f', {from} + math.floor(i / {in_each_ms})), \
             struct.pack('Bc0I', 16, string.format('%08d%08d', {from}, i), {permits})) end"
        );
        self.server.cli(&["EVAL", &fill, "0"]);
    }

    pub(crate) fn set_left(&self, left: i64) {
        self.server.cli(&["SET", "{orders}:value", &left.to_string()]);
    }

    pub(crate) fn entries(&self) -> u64 {
        self.server.cli(&["ZCARD", "{orders}:permits"]).parse().unwrap()
    }

    /// The stored number of permits left, plus those of all entries: the rate, if none is lost.
    pub(crate) fn sum(&self) -> i64 {
        let sum = "local sum = tonumber(redis.call('GET', '{orders}:value')) \
                   for _, m in ipairs(redis.call('ZRANGE', '{orders}:permits', 0, -1)) do \
                   local _, n = struct.unpack('Bc0I', m) sum = sum + n end return sum";
        self.server.cli(&["EVAL", sum, "0"]).parse().unwrap()
    }

    /// Number of calls of a command.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        self.stat(command, "calls").unwrap_or(0)
    }

    /// Runs a script once; a reply of 4 means that the count is unfinished.
    pub(crate) fn run_part(&self, last: &str, ms: u64, args: &[&str]) -> String {
        let text = [
            include_str!("../../lua/redisson/numbers.lua"),
            include_str!("../../lua/redisson/state.lua"),
            include_str!("../../lua/redisson/chunked_count.lua"),
            include_str!("../../lua/redisson/initialized.lua"),
            last,
        ]
        .join("\n");
        let suffixes =
            ["value", "value:c", "permits", "permits:c", "permits:count", "permits:c:count"];
        let keys = suffixes.map(|suffix| format!("{{{NAME}}}:{suffix}"));
        let us = (ms * 1_000).to_string();
        let words = ["EVAL", &text, "7", NAME].into_iter();
        let words = words.chain(keys.iter().map(String::as_str)).chain([&*us, ""]);
        self.server.cli(&words.chain(args.iter().copied()).collect::<Vec<_>>())
    }

    pub(crate) fn stat(&self, command: &str, name: &str) -> Option<u64> {
        let info = self.server.cli(&["INFO", "commandstats"]);
        let line = info.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:")))?;
        let (_, rest) = line.split_once(&format!("{name}="))?;
        rest.split(',').next()?.parse().ok()
    }
}
