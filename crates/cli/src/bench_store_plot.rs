//! Plots the stores' rates: a panel for each workload, a group of bars for each number of threads.

use anyhow::anyhow;
use latchwork_bench::store::{Row, Workload};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const COLUMNS: usize = 2;
const PANEL: (u32, u32) = (470, 210);
const TITLE: u32 = 30;
const LEGEND: u32 = 26;

/// Colours that differ in brightness and are distinguishable with colour blindness (Okabe and Ito,
/// 2008).
const INKS: [RGBColor; 8] = [
    RGBColor(0, 0, 0),
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 140, 105),
    RGBColor(170, 80, 140),
    RGBColor(110, 110, 110),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

type Drawn<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Returns an SVG file.
pub(crate) fn draw(rows: &[Row]) -> anyhow::Result<String> {
    let mut svg = String::new();
    drawn(&mut svg, rows).map_err(|error| anyhow!("the plot: {error}"))?;
    Ok(svg)
}

fn drawn(svg: &mut String, rows: &[Row]) -> Drawn<()> {
    let there = |workload: &Workload| rows.iter().any(|r| r.params.workload == workload.name());
    let workloads: Vec<Workload> = Workload::ALL.into_iter().filter(there).collect();
    let mut subjects: Vec<&str> = rows.iter().map(|row| row.subject).collect();
    subjects.sort_unstable();
    subjects.dedup();
    let lines = workloads.len().div_ceil(COLUMNS).max(1);
    let size = (PANEL.0 * COLUMNS as u32, TITLE + LEGEND + PANEL.1 * lines as u32);
    let root = SVGBackend::with_string(svg, size).into_drawing_area();
    root.fill(&WHITE)?;
    root.draw(&Text::new("Operations a second", (12, 8), ("sans-serif", 18)))?;
    for (at, subject) in subjects.iter().enumerate() {
        let x = 12 + at as i32 * 125;
        let y = TITLE as i32 + 4;
        let ink = INKS[at % INKS.len()];
        root.draw(&Rectangle::new([(x, y), (x + 10, y + 10)], ink.filled()))?;
        root.draw(&Text::new((*subject).to_owned(), (x + 14, y - 1), ("sans-serif", 13)))?;
    }
    let (_, below) = root.split_vertically(TITLE + LEGEND);
    for (area, workload) in below.split_evenly((lines, COLUMNS)).iter().zip(&workloads) {
        let rows: Vec<&Row> =
            rows.iter().filter(|row| row.params.workload == workload.name()).collect();
        panel(area, *workload, &rows, &subjects)?;
    }
    root.present()?;
    Ok(())
}

fn panel(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    workload: Workload,
    rows: &[&Row],
    subjects: &[&str],
) -> Drawn<()> {
    let mut crews: Vec<(usize, usize)> = rows.iter().map(|r| (r.threads, r.procs)).collect();
    crews.sort_unstable();
    crews.dedup();
    let top = rows.iter().map(|row| row.ops_per_s).fold(0.0, f64::max).max(1e-9);
    let (left, bottom, height) = (20, PANEL.1 as i32 - 30, PANEL.1 as i32 - 62);
    let group = (PANEL.0 as i32 - 2 * left) / crews.len().max(1) as i32;
    let wide = ((group - 14) / subjects.len().max(1) as i32).max(2);
    area.draw(&Text::new(workload.name(), (left, 6), ("sans-serif", 14)))?;
    let label = ("sans-serif", 11).into_font().color(&BLACK);
    for (at, (threads, procs)) in crews.iter().enumerate() {
        let x = left + at as i32 * group;
        let s = if *threads == 1 { "" } else { "s" };
        let mut text = format!("{threads} thread{s}");
        if *procs > 1 {
            text += &format!(" in {procs} processes");
        }
        area.draw(&Text::new(text, (x, bottom + 4), ("sans-serif", 11)))?;
        for (which, subject) in subjects.iter().enumerate() {
            let of = |row: &&&Row| {
                row.subject == *subject && (row.threads, row.procs) == (*threads, *procs)
            };
            let Some(row) = rows.iter().find(of) else { continue };
            let tall = (row.ops_per_s / top * f64::from(height)).round() as i32;
            let from = x + which as i32 * wide;
            let bar = [(from, bottom - tall), (from + wide - 2, bottom)];
            area.draw(&Rectangle::new(bar, INKS[which % INKS.len()].filled()))?;
            let said = label.clone().pos(Pos::new(HPos::Center, VPos::Bottom));
            let written = short(row.ops_per_s);
            area.draw(&Text::new(written, (from + wide / 2, bottom - tall - 2), said))?;
        }
    }
    area.draw(&PathElement::new(
        [(left, bottom), (PANEL.0 as i32 - left, bottom)],
        BLACK.stroke_width(1),
    ))?;
    Ok(())
}

/// Formats a rate in three or four characters.
fn short(per_s: f64) -> String {
    match per_s {
        _ if per_s >= 9.995e6 => format!("{:.0}M", per_s / 1e6),
        _ if per_s >= 999_500.0 => format!("{:.1}M", per_s / 1e6),
        _ if per_s >= 9995.0 => format!("{:.0}k", per_s / 1e3),
        _ if per_s >= 999.5 => format!("{:.1}k", per_s / 1e3),
        _ => format!("{per_s:.0}"),
    }
}
