//! `locks graph`: the graph of waits.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use latchwork_lockmgr::{Edge, LockInfo, Snapshot};
use serde_json::json;

use super::list::say_restless;
use super::print_json;
use super::scene::{Scene, end, named};
use super::svg::{self, Drawing};
use crate::output;

/// Show which owner waits for which
///
/// A waiter waits for the owners that hold the object in a conflicting mode, and for the waiters
/// before it that request one. Owners that wait for each other in a cycle are marked CYCLE; the
/// manager breaks each cycle by itself. At most 120 owners and 500 arrows are drawn.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork locks graph locks.region
  latchwork locks graph locks.region --svg waits.svg
  latchwork locks graph locks.region --dot | dot -Tpdf > waits.pdf")]
pub(crate) struct Args {
    /// The region, or the folder of a store
    file: PathBuf,
    /// Print a graph for the program dot
    #[arg(long, conflicts_with = "json")]
    dot: bool,
    /// Print JSON lines, one object per edge
    #[arg(long)]
    json: bool,
    /// Draw it
    #[arg(long, value_name = "FILE.svg", conflicts_with_all = ["json", "dot"])]
    svg: Option<PathBuf>,
}

/// The most owners that are drawn, and the most arrows.
const DRAWN: usize = 120;
const ARROWS: usize = 500;

/// Draws it.
pub(super) fn draw_into(scene: &Scene, to: &Path) -> anyhow::Result<()> {
    let picture = scene.look()?;
    let edges = scene.edges(&picture);
    let cycle = cycles(&picture, &edges);
    let in_cycle = |edge: &Edge| {
        let (a, b) = ends(&picture, edge);
        cycle.get(&a.owner.index).is_some_and(|r| cycle.get(&b.owner.index) == Some(r))
    };
    svg::write(to, &draw(scene, &picture, &edges, &cycle, &in_cycle))
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let scene = Scene::open(&args.file)?;
    if let Some(path) = &args.svg {
        draw_into(&scene, path)?;
        return Ok(ExitCode::SUCCESS);
    }
    let picture = scene.look()?;
    let edges = scene.edges(&picture);
    let cycle = cycles(&picture, &edges);
    let in_cycle = |edge: &Edge| {
        let (a, b) = ends(&picture, edge);
        cycle.get(&a.owner.index).is_some_and(|r| cycle.get(&b.owner.index) == Some(r))
    };
    if args.json {
        let line = |edge: &Edge| {
            let (waiter, blocker) = ends(&picture, edge);
            json!({
                "object": scene.of(waiter), "waiter": end(waiter),
                "wanted": waiter.wanted.map(|mode| scene.mode(mode)), "blocker": end(blocker),
                "held": blocker.held.map(|mode| scene.mode(mode)), "hard": edge.hard,
                "waited_ns": waiter.waited_ns, "cycle": in_cycle(edge),
            })
        };
        print_json(&edges.iter().map(line).collect::<Vec<_>>())?;
    } else if args.dot {
        output::print(|out| dot(&scene, &picture, &edges, &in_cycle, out))?;
    } else {
        output::print(|out| text(&scene, &picture, &edges, &in_cycle, out))?;
    }
    if scene.modes.is_none() {
        output::complain("its modes are unknown here: each holder counts as in the way");
    }
    say_restless(&picture);
    Ok(ExitCode::SUCCESS)
}

/// The waiting owner, and the blocking one.
pub(super) fn ends<'a>(picture: &'a Snapshot, edge: &Edge) -> (&'a LockInfo, &'a LockInfo) {
    (&picture.rows[edge.row], &picture.rows[edge.blocker])
}

fn text(
    scene: &Scene,
    picture: &Snapshot,
    edges: &[Edge],
    in_cycle: &dyn Fn(&Edge) -> bool,
    out: &mut impl Write,
) -> io::Result<()> {
    if edges.is_empty() {
        return writeln!(out, "nobody waits");
    }
    let mut last = None;
    for edge in edges {
        let (waiter, blocker) = ends(picture, edge);
        if last != Some(edge.row) {
            last = Some(edge.row);
            let wanted = waiter.wanted.map_or(String::new(), |mode| scene.mode(mode));
            let object = output::tail(&scene.of(waiter), 24);
            let (who, since) = (named(waiter), output::time(waiter.waited_ns));
            writeln!(out, "{who} wants {object} in {wanted}, for {since}")?;
        }
        let cycle = if in_cycle(edge) { "   CYCLE" } else { "" };
        let how = match (edge.hard, blocker.held, blocker.wanted) {
            (true, Some(mode), _) => format!("held in {}", scene.mode(mode)),
            (_, _, Some(mode)) => format!("wanted before in {}", scene.mode(mode)),
            _ => "held".to_owned(),
        };
        let dead = match scene.person(blocker.thread) {
            Some(person) if person.alive => "",
            _ => ", and it is dead",
        };
        writeln!(out, "    {how} by {}{dead}{cycle}", named(blocker))?;
    }
    Ok(())
}

fn dot(
    scene: &Scene,
    picture: &Snapshot,
    edges: &[Edge],
    in_cycle: &dyn Fn(&Edge) -> bool,
    out: &mut impl Write,
) -> io::Result<()> {
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    writeln!(out, "digraph waits {{\n  node [shape=box];")?;
    let mut known = HashSet::new();
    for edge in edges {
        let (waiter, blocker) = ends(picture, edge);
        for row in [waiter, blocker] {
            if known.insert(row.owner) {
                let label = format!("{}\\n{}", quoted(&named(row)), scene.place(row.thread));
                writeln!(out, "  \"{}\" [label=\"{label}\"];", row.owner)?;
            }
        }
        let wanted = waiter.wanted.map_or(String::new(), |mode| scene.mode(mode));
        let label = format!("{} {wanted}", quoted(&scene.of(waiter)));
        let style = if edge.hard { "solid" } else { "dashed" };
        let colour = if in_cycle(edge) { ", color=red" } else { "" };
        let (from, to) = (waiter.owner, blocker.owner);
        writeln!(out, "  \"{from}\" -> \"{to}\" [label=\"{label}\", style={style}{colour}];")?;
    }
    writeln!(out, "}}")
}

/// Draws a box for each owner, and an arrow from each waiter to its blocker.
fn draw(
    scene: &Scene,
    picture: &Snapshot,
    edges: &[Edge],
    cycle: &HashMap<u32, usize>,
    in_cycle: &dyn Fn(&Edge) -> bool,
) -> Drawing {
    // By owner: its request if it waits, otherwise a held lock. Those in a cycle come first, then
    // those with the most edges.
    let mut rows: HashMap<u32, &LockInfo> = HashMap::new();
    let mut waited: HashMap<u32, u64> = HashMap::new();
    for edge in edges {
        let (waiter, blocker) = ends(picture, edge);
        rows.insert(waiter.owner.index, waiter);
        let known = rows.entry(blocker.owner.index).or_insert(blocker);
        if blocker.wanted.is_some() {
            *known = blocker;
        }
        for owner in [waiter.owner.index, blocker.owner.index] {
            let longest = waited.entry(owner).or_default();
            *longest = (*longest).max(waiter.waited_ns);
        }
    }
    let mut owners: Vec<u32> = rows.keys().copied().collect();
    let weight = |owner: &u32| (!cycle.contains_key(owner), u64::MAX - waited[owner], *owner);
    owners.sort_by_key(weight);
    let more = owners.len().saturating_sub(DRAWN);
    owners.truncate(DRAWN);
    owners.sort_unstable();
    let waiting = rows.values().filter(|row| row.wanted.is_some()).count();
    let title = match (waiting, more) {
        (0, _) => "nobody waits".to_owned(),
        (n, 0) => format!("who waits for whom: {n} waiting"),
        (n, more) => format!("who waits for whom: {n} waiting; {more} owners not drawn"),
    };
    let mut drawing = Drawing::new(title);
    let mut places = HashMap::new();
    for owner in owners {
        let row = rows[&owner];
        let mut lines = vec![output::head(&named(row), 34), scene.place(row.thread)];
        if let Some(mode) = row.wanted {
            let object = output::tail(&scene.of(row), 20);
            lines.push(format!("wants {object} in {}", scene.mode(mode)));
            lines.push(format!("for {}", output::time(row.waited_ns)));
        }
        let mark = if cycle.contains_key(&owner) { "CYCLE" } else { "" };
        places.insert(owner, drawing.node(lines, !mark.is_empty(), mark));
    }
    let place = |row: usize| places.get(&picture.rows[row].owner.index).copied();
    let drawn: Vec<&Edge> =
        edges.iter().filter(|e| place(e.row).is_some() && place(e.blocker).is_some()).collect();
    // Of the earlier waiters, the nearest suffice: they wait for the others.
    let mut before: HashMap<usize, HashSet<usize>> = HashMap::new();
    for edge in drawn.iter().filter(|edge| !edge.hard) {
        before.entry(edge.row).or_default().insert(edge.blocker);
    }
    let further = |edge: &Edge| {
        let behind = |other: &usize| before.get(other).is_some_and(|b| b.contains(&edge.blocker));
        !edge.hard && !in_cycle(edge) && before[&edge.row].iter().any(behind)
    };
    for edge in drawn.into_iter().filter(|edge| !further(edge)).take(ARROWS) {
        let blocker = &picture.rows[edge.blocker];
        let (Some(from), Some(to)) = (place(edge.row), place(edge.blocker)) else { continue };
        let label = match (edge.hard, blocker.held, blocker.wanted) {
            (true, Some(mode), _) => format!("holds {}", scene.mode(mode)),
            (_, _, Some(mode)) => format!("wants {}", scene.mode(mode)),
            _ => "holds".to_owned(),
        };
        drawing.edge(from, to, output::head(&label, 24), edge.hard, in_cycle(edge));
    }
    drawing
}

/// Returns the owners that wait for each other, each with the number of its cycle.
pub(super) fn cycles(picture: &Snapshot, edges: &[Edge]) -> HashMap<u32, usize> {
    let mut to: HashMap<u32, Vec<u32>> = HashMap::new();
    for edge in edges {
        let (waiter, blocker) = ends(picture, edge);
        to.entry(waiter.owner.index).or_default().push(blocker.owner.index);
    }
    // An owner for which none of the rest waits, or which waits for none of it, is in no cycle.
    loop {
        let waited: HashSet<u32> = to.values().flatten().copied().collect();
        let waiting: HashSet<u32> = to.keys().copied().collect();
        let before = to.values().map(Vec::len).sum::<usize>() + to.len();
        to.retain(|owner, _| waited.contains(owner));
        to.values_mut().for_each(|blockers| blockers.retain(|owner| waiting.contains(owner)));
        to.retain(|_, blockers| !blockers.is_empty());
        if to.values().map(Vec::len).sum::<usize>() + to.len() == before {
            break;
        }
    }
    let reach = |from: u32| {
        let (mut found, mut next) = (HashSet::new(), vec![from]);
        while let Some(at) = next.pop() {
            next.extend(to.get(&at).into_iter().flatten().filter(|owner| found.insert(**owner)));
        }
        found
    };
    let reached: HashMap<u32, HashSet<u32>> =
        to.keys().map(|owner| (*owner, reach(*owner))).collect();
    let mut cycle: HashMap<u32, usize> = HashMap::new();
    for (owner, found) in reached.iter().filter(|(owner, found)| found.contains(owner)) {
        let others =
            found.iter().filter(|other| reached.get(other).is_some_and(|r| r.contains(owner)));
        let number = others.min().map_or(0, |least| *least as usize);
        cycle.insert(*owner, number);
    }
    cycle
}
