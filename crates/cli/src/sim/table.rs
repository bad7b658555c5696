//! The result for people: a table for each figure, a column for each latch.

use std::io::{self, IsTerminal, Write};

use comfy_table::{Attribute, Cell, Color};

use super::Scene;
use super::row::Row;
use super::sweep::Cells;
use crate::output::{self, WIDTH};

/// What a cell shows, at most: `1234.567 12.34x ~`.
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
    writeln!(
        out,
        "{} cycles inside, {} outside; {} us, {runs}",
        workload.shape.inside, workload.shape.outside, scene.us
    )?;
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
    let fair = |row: &Row| format!("{:.3}", row.fairness);
    figure(
        cells,
        rows,
        "the busier half of the threads' share of operations; 0.5 is fair",
        fair,
        out,
    )?;
    let wait = |row: &Row| output::time(row.p99_ns as u64);
    figure(cells, rows, "99 of 100 waits for the latch were no longer", wait, out)
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
