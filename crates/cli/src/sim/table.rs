//! The result for display: a table for each figure, a column for each latch.

use std::io::{self, IsTerminal, Write};

use comfy_table::{Attribute, Cell, Color};

use latchwork_bench::sim::{Subject, Workload};

use super::Scene;
use super::row::Row;
use super::sweep::Cells;
use crate::output::{self, WIDTH};

/// The widest cell: `1234.567 12.34x ~`.
const CELL: usize = 15;

/// Prints all tables.
pub(super) fn print(
    scene: &Scene,
    cells: &Cells<'_>,
    rows: &[Row],
    out: &mut impl Write,
) -> io::Result<()> {
    let (workload, seeds) = (&scene.workload, cells.seeds);
    let runs = if seeds == 1 { "1 seed".to_owned() } else { format!("medians of {seeds} seeds") };
    writeln!(out, "simulated: {} on {}", workload.name, scene.spec.name)?;
    for (inside, outside, of) in cycles(workload, cells.latches) {
        writeln!(out, "{inside} cycles inside, {outside} outside{of}")?;
    }
    if let Some(writes) = workload.writes() {
        writeln!(out, "{writes} writes in a thousand operations")?;
    }
    if let Some(operations) = workload.engine {
        let (count, what) = operations.objects();
        writeln!(out, "under a {}: {count} {what}", operations.kind())?;
    }
    writeln!(out, "{} us, {runs}", scene.us)?;
    let first = cells.latches[0].name;
    let speed = match cells.latches.len() {
        1 => "million operations a second".to_owned(),
        _ => format!("million operations a second, and how many times {first}'s"),
    };
    let noisy = rows.iter().any(|row| row.noisy);
    let noisy = if noisy { "; ~: seeds disagree too much to compare" } else { "" };
    let fast = |row: &Row| {
        let ratio = row.ratio.map_or(String::new(), |ratio| format!(" {ratio:>5.2}x"));
        format!("{:.3}{ratio}{}", row.ops_per_s / 1e6, if row.noisy { " ~" } else { "" })
    };
    figure(cells, rows, &format!("{speed}{noisy}"), fast, out)?;
    if workload.engine.is_some() && rows.iter().any(|row| row.linear.is_some()) {
        let linear = |row: &Row| row.linear.map_or("-".to_owned(), |part| format!("{part:.3}"));
        figure(cells, rows, "throughput over one thread's, times the threads", linear, out)?;
    }
    let fair = |row: &Row| format!("{:.3}", row.fairness);
    figure(
        cells,
        rows,
        "the busier half of the threads' share of operations; 0.5 is fair",
        fair,
        out,
    )?;
    let wait = |row: &Row| output::time(row.p99_ns as u64);
    figure(cells, rows, &format!("99 of 100 {} took no longer", workload.timed()), wait, out)?;
    let (accesses, host_s) = rows.iter().fold((0.0, 0.0), |sum, row| {
        (sum.0 + row.accesses * row.runs as f64, sum.1 + row.host_s * row.runs as f64)
    });
    writeln!(
        out,
        "\n{:.1} million accesses took {} of this host's processors: {:.1} million a second",
        accesses / 1e6,
        output::time((host_s * 1e9) as u64),
        accesses / 1e6 / host_s.max(1e-9),
    )
}

/// Cycles inside and outside, and of which latches, if they differ.
fn cycles(workload: &Workload, latches: &[Subject]) -> Vec<(u64, u64, String)> {
    let mut all: Vec<(u64, u64, String)> = Vec::new();
    for latch in latches {
        let (inside, outside) = (workload.inside(latch), workload.outside(latch));
        match all.iter_mut().find(|known| (known.0, known.1) == (inside, outside)) {
            Some(known) => known.2 = format!("{}, {}", known.2, latch.name),
            None => all.push((inside, outside, format!(": {}", latch.name))),
        }
    }
    if let [(_, _, of)] = &mut all[..] {
        of.clear();
    }
    all
}

/// One table, or several below each other if the latches do not fit.
fn figure(
    cells: &Cells<'_>,
    rows: &[Row],
    title: &str,
    show: impl Fn(&Row) -> String,
    out: &mut impl Write,
) -> io::Result<()> {
    let colour = io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    writeln!(out, "\n{title}")?;
    let widest = cells.latches.iter().map(|latch| latch.name.len()).max().unwrap_or(0);
    let fit = (WIDTH - 9) / (widest.max(CELL) + 2);
    for latches in cells.latches.chunks(fit.max(1)) {
        let header: Vec<_> =
            ["threads"].into_iter().chain(latches.iter().map(|l| l.name)).collect();
        let mut table = output::table(&header, 0..header.len(), colour);
        for threads in cells.threads {
            let cell = |name: &str| {
                let row = rows.iter().find(|row| row.threads == *threads && row.subject == name);
                let Some(row) = row else { return Cell::new("-") };
                let cell = Cell::new(show(row));
                let cell = if row.rival { cell } else { cell.add_attribute(Attribute::Bold) };
                if row.noisy { cell.fg(Color::Yellow) } else { cell }
            };
            let line = [Cell::new(threads)].into_iter().chain(latches.iter().map(|l| cell(l.name)));
            table.add_row(line);
        }
        writeln!(out, "{table}")?;
    }
    Ok(())
}
