//! A checker for Adya's anomalies in histories of list-append transactions. It depends neither on
//! the log nor on the locks. (Kingsbury and Alvaro, "Elle: Inferring Isolation Anomalies from
//! Experimental Observations", VLDB 2020.)
//!
//! Transactions append numbers to lists and read lists. No number is appended twice, so a list that
//! was read shows which transactions wrote it, and in which order. This gives edges between
//! transactions:
//!
//! | edge | from | to |
//! |---|---|---|
//! | ww | the transaction that appended a number | the transaction that appended the next one |
//! | wr | the transaction that appended the last number of a list | each transaction that read it |
//! | rw | a transaction that read a list | the transaction that appended the next number to it |
//! | rt | a transaction that was answered | each transaction that began afterwards |
//!
//! A serializable history has no cycle of the first three. A strictly serializable one has no cycle
//! of all four. Further checks: values that were read were committed (G1a) and final (G1b), and all
//! reads of a list are prefixes of one list.
//!
//! A number identifies its transaction. The writes of a transaction are therefore known even if its
//! process died before reporting the outcome.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;

/// Numbers that a transaction may append.
pub const NUMBERS: u64 = 16;

/// An operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Appended a number to a list.
    Append(u64, u64),
    /// Read a list.
    Read(u64, Vec<u64>),
}

/// A transaction. It appends the numbers from `id` times [`NUMBERS`] on.
#[derive(Clone, Debug)]
pub struct Transaction {
    /// Its number.
    pub id: u64,
    /// Begin and end, on one clock for all transactions.
    pub time: (u64, u64),
    /// Whether it committed.
    pub committed: bool,
    /// Its operations in order.
    pub ops: Vec<Op>,
}

/// An anomaly of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Anomaly {
    /// Two reads of a list are not prefixes of one list.
    Orders(u64, Vec<u64>, Vec<u64>),
    /// A number occurs twice in a list.
    Twice(u64, u64),
    /// A transaction read a list that contradicts its own writes.
    Internal(u64, Op),
    /// G1a: a value that was read was rolled back.
    Aborted(u64, u64),
    /// G1b: a value that was read was not the last one of its transaction.
    Intermediate(u64, u64),
    /// A cycle: transactions, each with the edge to the next.
    Cycle(&'static str, Vec<(u64, Edge)>),
}

/// Why a transaction precedes another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Edge {
    /// It wrote before the other.
    Ww,
    /// The other read its write.
    Wr,
    /// It read a value that the other overwrote.
    Rw,
    /// It ended before the other began.
    Rt,
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Orders(list, one, other) => {
                let same = one.iter().zip(other).take_while(|(a, b)| a == b).count();
                let (one, other) = (&one[same..], &other[same..]);
                write!(f, "list {list}, behind {same} numbers, was read as {one:?} and {other:?}")
            }
            Self::Twice(list, number) => write!(f, "list {list} has {number} twice"),
            Self::Internal(id, op) => write!(f, "transaction {id}: {op:?} after its own appends"),
            Self::Aborted(id, number) => {
                write!(f, "G1a: transaction {id} read {number}, which was rolled back")
            }
            Self::Intermediate(id, number) => {
                write!(f, "G1b: transaction {id} read {number}, which was not the last")
            }
            Self::Cycle(name, edges) => {
                write!(f, "{name}:")?;
                edges.iter().try_for_each(|(id, edge)| write!(f, " {id} -{edge:?}->"))
            }
        }
    }
}

/// A history and the facts derived from it.
struct Known {
    by_id: BTreeMap<u64, Transaction>,
    /// The longest read of each list.
    lists: HashMap<u64, Vec<u64>>,
}

/// Searches for anomalies. Returns the number of edges without those of time.
///
/// # Errors
///
/// The first anomaly.
pub fn check(history: Vec<Transaction>) -> Result<usize, Box<Anomaly>> {
    let known = Known::of(history)?;
    known.look_at_reads()?;
    known.look_for_cycles()
}

impl Known {
    fn of(history: Vec<Transaction>) -> Result<Self, Box<Anomaly>> {
        let mut by_id: BTreeMap<_, _> = history.into_iter().map(|one| (one.id, one)).collect();
        let mut lists: HashMap<u64, Vec<u64>> = HashMap::new();
        let committed = by_id.values().filter(|one| one.committed);
        for (list, read) in committed.flat_map(reads) {
            let longest = lists.entry(list).or_default();
            let common = longest.len().min(read.len());
            if longest[..common] != read[..common] {
                return Err(Box::new(Anomaly::Orders(list, longest.clone(), read.clone())));
            }
            if read.len() > longest.len() {
                longest.clone_from(read);
            }
        }
        for (list, numbers) in &lists {
            let mut seen = BTreeSet::new();
            for number in numbers {
                if !seen.insert(number) {
                    return Err(Box::new(Anomaly::Twice(*list, *number)));
                }
                // A transaction whose process died. It committed, since its writes were read.
                let unknown = || Transaction {
                    id: number / NUMBERS,
                    time: (0, u64::MAX),
                    committed: true,
                    ops: Vec::new(),
                };
                let of = by_id.entry(number / NUMBERS).or_insert_with(unknown);
                let op = Op::Append(*list, *number);
                if of.time == (0, u64::MAX) && !of.ops.contains(&op) {
                    of.ops.push(op);
                }
            }
        }
        Ok(Self { by_id, lists })
    }

    fn committed(&self) -> impl Iterator<Item = &Transaction> {
        self.by_id.values().filter(|one| one.committed)
    }

    /// Checks G1a, G1b and a transaction's reads of its own writes.
    fn look_at_reads(&self) -> Result<(), Box<Anomaly>> {
        for one in self.committed() {
            let mut own: HashMap<u64, Vec<u64>> = HashMap::new();
            for op in &one.ops {
                match op {
                    Op::Append(list, number) => own.entry(*list).or_default().push(*number),
                    Op::Read(list, read) => {
                        let own = own.get(list).map_or(&[][..], Vec::as_slice);
                        let Some(others) = read.strip_suffix(own) else {
                            return Err(Box::new(Anomaly::Internal(one.id, op.clone())));
                        };
                        self.look_at(one.id, *list, others)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn look_at(&self, reader: u64, list: u64, read: &[u64]) -> Result<(), Box<Anomaly>> {
        for number in read {
            let of = &self.by_id[&(number / NUMBERS)];
            if !of.committed {
                return Err(Box::new(Anomaly::Aborted(reader, *number)));
            }
        }
        let Some(last) = read.last() else { return Ok(()) };
        let of = &self.by_id[&(last / NUMBERS)];
        let its_last = of.ops.iter().rev().find_map(|op| match op {
            Op::Append(to, number) if *to == list => Some(*number),
            _ => None,
        });
        match its_last {
            Some(number) if number != *last && of.id != reader => {
                Err(Box::new(Anomaly::Intermediate(reader, *last)))
            }
            _ => Ok(()),
        }
    }

    /// The edges. Those of time pass through nodes that stand for instants.
    fn graph(&self) -> Graph {
        let mut graph = Graph::default();
        for numbers in self.lists.values() {
            for pair in numbers.windows(2) {
                graph.edge(pair[0] / NUMBERS, pair[1] / NUMBERS, Edge::Ww);
            }
        }
        for one in self.committed() {
            let mut own = BTreeSet::new();
            for op in &one.ops {
                let (list, read) = match op {
                    Op::Append(list, _) => {
                        own.insert(*list);
                        continue;
                    }
                    // Reads after the transaction's own appends add nothing.
                    Op::Read(list, _) if own.contains(list) => continue,
                    Op::Read(list, read) => (list, read),
                };
                if let Some(last) = read.last() {
                    graph.edge(last / NUMBERS, one.id, Edge::Wr);
                }
                if let Some(next) = self.lists.get(list).and_then(|all| all.get(read.len())) {
                    graph.edge(one.id, next / NUMBERS, Edge::Rw);
                }
            }
        }
        graph
    }

    fn look_for_cycles(&self) -> Result<usize, Box<Anomaly>> {
        let graph = self.graph();
        // Cycles with fewer kinds of edges are more serious.
        let tries: [(&str, &[Edge]); 3] = [
            ("G0", &[Edge::Ww]),
            ("G1c", &[Edge::Ww, Edge::Wr]),
            ("G2", &[Edge::Ww, Edge::Wr, Edge::Rw]),
        ];
        for (name, kinds) in tries {
            if let Some(cycle) = graph.cycle(kinds) {
                let skews = cycle.iter().filter(|(_, edge)| *edge == Edge::Rw).count();
                let name = if name == "G2" && skews == 1 { "G-single" } else { name };
                return Err(Box::new(Anomaly::Cycle(name, cycle)));
            }
        }
        let mut timed = graph;
        let edges = timed.edges.values().map(Vec::len).sum();
        self.add_time(&mut timed);
        match timed.cycle(&[Edge::Ww, Edge::Wr, Edge::Rw, Edge::Rt]) {
            Some(mut cycle) => {
                cycle.retain(|(id, _)| *id < INSTANT);
                Err(Box::new(Anomaly::Cycle("real time", cycle)))
            }
            None => Ok(edges),
        }
    }

    /// One node per end of a transaction, in order of time. Transactions lead to their own node,
    /// and nodes to the transactions that began later.
    fn add_time(&self, graph: &mut Graph) {
        let mut answers: Vec<_> = self.committed().map(|one| (one.time.1, one.id)).collect();
        answers.sort_unstable();
        for (index, (_, id)) in answers.iter().enumerate() {
            let node = INSTANT + index as u64;
            graph.edge(*id, node, Edge::Rt);
            graph.edge(node, node + 1, Edge::Rt);
        }
        for one in self.committed() {
            let before = answers.partition_point(|(time, _)| *time < one.time.0);
            if let Some(last) = before.checked_sub(1) {
                graph.edge(INSTANT + last as u64, one.id, Edge::Rt);
            }
        }
    }
}

/// Nodes from here on are instants.
const INSTANT: u64 = 1 << 62;

fn reads(one: &Transaction) -> impl Iterator<Item = (u64, &Vec<u64>)> {
    one.ops.iter().filter_map(|op| match op {
        Op::Read(list, read) => Some((*list, read)),
        Op::Append(..) => None,
    })
}

#[derive(Default)]
struct Graph {
    edges: BTreeMap<u64, Vec<(u64, Edge)>>,
}

impl Graph {
    fn edge(&mut self, from: u64, to: u64, kind: Edge) {
        if from != to {
            self.edges.entry(from).or_default().push((to, kind));
        }
    }

    fn after(&self, node: u64) -> &[(u64, Edge)] {
        self.edges.get(&node).map_or(&[], Vec::as_slice)
    }

    /// A short cycle of edges of these kinds, if there is one.
    fn cycle(&self, kinds: &[Edge]) -> Option<Vec<(u64, Edge)>> {
        let of = |kind: &Edge| kinds.contains(kind);
        // Repeatedly removing nodes without incoming edges leaves all cycles.
        let mut before: HashMap<u64, usize> = HashMap::new();
        for (from, edges) in &self.edges {
            before.entry(*from).or_default();
            for (to, _) in edges.iter().filter(|(_, kind)| of(kind)) {
                *before.entry(*to).or_default() += 1;
            }
        }
        let mut free: Vec<_> = before.iter().filter(|(_, n)| **n == 0).map(|(at, _)| *at).collect();
        while let Some(node) = free.pop() {
            before.remove(&node);
            for (to, _) in self.after(node).iter().filter(|(_, kind)| of(kind)) {
                let left = before.get_mut(to)?;
                *left -= 1;
                if *left == 0 {
                    free.push(*to);
                }
            }
        }
        let shortest = before.keys().filter_map(|node| self.back_to(*node, &before, kinds));
        shortest.take(200).min_by_key(Vec::len)
    }

    /// The shortest path from a node back to itself.
    fn back_to(
        &self,
        start: u64,
        among: &HashMap<u64, usize>,
        kinds: &[Edge],
    ) -> Option<Vec<(u64, Edge)>> {
        let mut came: HashMap<u64, (u64, Edge)> = HashMap::new();
        let mut queue = VecDeque::from([start]);
        while let Some(node) = queue.pop_front() {
            for (to, kind) in self.after(node) {
                if !kinds.contains(kind) || !among.contains_key(to) || came.contains_key(to) {
                    continue;
                }
                came.insert(*to, (node, *kind));
                queue.push_back(*to);
                if *to == start {
                    let mut way = Vec::new();
                    let mut at = start;
                    loop {
                        let (from, kind) = came[&at];
                        way.push((from, kind));
                        at = from;
                        if at == start {
                            way.reverse();
                            return Some(way);
                        }
                    }
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn txn(id: u64, ops: &[Op]) -> Transaction {
        Transaction { id, time: (id * 10, id * 10 + 100), committed: true, ops: ops.to_vec() }
    }

    fn append(list: u64, id: u64) -> Op {
        Op::Append(list, id * NUMBERS)
    }

    fn read(list: u64, ids: &[u64]) -> Op {
        Op::Read(list, ids.iter().map(|id| id * NUMBERS).collect())
    }

    /// The name of the anomaly.
    fn wrong(history: &[Transaction]) -> String {
        let said = check(history.to_vec()).map(|edges| format!("fine, {edges} edges"));
        said.unwrap_or_else(|anomaly| anomaly.to_string().split(':').next().unwrap().to_owned())
    }

    #[test]
    fn each_anomaly_has_its_name() {
        let fine = [
            txn(1, &[append(7, 1)]),
            txn(2, &[read(7, &[1]), append(7, 2)]),
            txn(3, &[read(7, &[1, 2])]),
        ];
        assert_eq!(wrong(&fine), "fine, 3 edges");
        let skew = [
            txn(1, &[read(7, &[]), append(8, 1)]),
            txn(2, &[read(8, &[]), append(7, 2)]),
            txn(3, &[read(7, &[2]), read(8, &[1])]),
        ];
        assert_eq!(wrong(&skew), "G2");
        let single = [
            txn(1, &[append(7, 1), append(8, 1)]),
            txn(2, &[read(7, &[1]), read(8, &[])]),
            txn(3, &[read(8, &[1])]),
        ];
        assert_eq!(wrong(&single), "G-single");
        let circle =
            [txn(1, &[append(7, 1), read(8, &[2])]), txn(2, &[append(8, 2), read(7, &[1])])];
        assert_eq!(wrong(&circle), "G1c");
        let dirty = [
            txn(1, &[append(7, 1), append(8, 1)]),
            txn(2, &[append(7, 2), append(8, 2)]),
            txn(3, &[read(7, &[1, 2]), read(8, &[2, 1])]),
        ];
        assert_eq!(wrong(&dirty), "G0");
    }

    #[test]
    fn what_is_simpler_has_one_too() {
        let mut aborted = txn(1, &[append(7, 1)]);
        aborted.committed = false;
        assert_eq!(wrong(&[aborted, txn(2, &[read(7, &[1])])]), "G1a");
        let twice = txn(1, &[append(7, 1), Op::Append(7, NUMBERS + 1)]);
        assert_eq!(wrong(&[twice, txn(2, &[read(7, &[1])])]), "G1b");
        let orders = [txn(1, &[read(7, &[4, 5])]), txn(2, &[read(7, &[5])])];
        assert_eq!(wrong(&orders), "list 7, behind 0 numbers, was read as [64, 80] and [80]");
        assert!(wrong(&[txn(1, &[read(7, &[4, 4])])]).contains("twice"));
        assert_eq!(wrong(&[txn(1, &[append(7, 1), read(7, &[])])]), "transaction 1");
        // The process of transaction 4 has died, but its writes are present.
        assert_eq!(wrong(&[txn(1, &[read(7, &[4])]), txn(2, &[read(8, &[4])])]), "fine, 2 edges");
    }

    #[test]
    fn what_was_answered_is_seen_afterwards() {
        let stale = |begun| {
            let mut reader = txn(9, &[read(7, &[])]);
            reader.time = (begun, begun + 5);
            [txn(1, &[append(7, 1)]), reader, txn(20, &[read(7, &[1])])]
        };
        assert_eq!(wrong(&stale(105)), "fine, 2 edges", "at the same time");
        assert_eq!(wrong(&stale(111)), "real time");
    }
}
