//! Tidegate's algorithms compared with each other.

use crate::contenders::{Allowance, Contender, Table};
use crate::keys::{Keys, Kind, Spread};
use crate::rounds::{PARTS, fill, medians};
use crate::{Plan, print_line};

const KEYS: u64 = 1_000_000;

pub(crate) fn run(plan: &Plan) {
    if !plan.wants("algorithms at 1M, string, uniform, 1 thread, allowed", false) {
        return;
    }
    let notations = [
        Allowance::Ample.notation(),
        "1/min burst 1000000 every 1min".to_owned(),
        "leaky-bucket 1/min capacity 50000000".to_owned(),
        "fixed-window 1000000/d".to_owned(),
        "fixed-window 1000000/24h first-hit".to_owned(),
        "fixed-window 1000000/d tz Europe/Berlin".to_owned(),
        "sliding-window 1000000/d approximate".to_owned(),
        "sliding-window 1000000/d precision 1h".to_owned(),
        "sliding-log 1000000/d".to_owned(),
    ];
    let keys = KEYS / plan.divisor;
    let tables: Vec<Table> = notations.iter().map(|notation| Table::new(notation)).collect();
    tables.iter().for_each(|table| fill(table, Kind::Text, keys));
    let draws = [Keys::draw(Kind::Text, Spread::Uniform, keys, PARTS * plan.checks, 1)];
    let contenders: Vec<&dyn Contender> = tables.iter().map(|table| table as _).collect();
    let nanos = medians(plan, &contenders, &draws, true);
    print_line(
        "\nalgorithms at 1M, string, uniform, 1 thread, allowed: ns per check of the table\n",
    );
    for (notation, figure) in notations.iter().zip(&nanos) {
        let times = figure / nanos[0];
        print_line(&format!("{notation:44}{figure:9.0}{times:8.2} times the first"));
    }
}
