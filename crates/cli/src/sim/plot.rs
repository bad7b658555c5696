//! Plots: panels of curves that are distinguished by marker and dash, not by colour alone.

use std::collections::BTreeSet;

use anyhow::anyhow;
use latchwork_bench::sim::Subject;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::Scene;
use super::row::Row;
use super::sweep::Cells;
use crate::output;

const WIDTH: u32 = 860;
/// The height of a panel.
const HEIGHT: u32 = 308;
const TITLE: u32 = 34;
/// Space for names to the right of a panel.
const NAMES: u32 = 150;
/// Pixels between two names, or two numbers of an axis.
const LINE: i32 = 15;
const APART: f64 = 26.0;

/// Colours that differ in brightness and are distinguishable with colour blindness (Okabe and Ito,
/// 2008).
const INKS: [RGBColor; 6] = [
    RGBColor(0, 0, 0),
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 140, 105),
    RGBColor(170, 80, 140),
    RGBColor(110, 110, 110),
];

/// Pixels on and off; none is solid.
const DASHES: [Option<(u32, u32)>; 5] =
    [None, Some((9, 5)), Some((2, 3)), Some((16, 5)), Some((5, 9))];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The options of a panel, and its curves.
pub(super) struct Panel {
    title: String,
    lines: Vec<Line>,
    /// From a tick's value to its label.
    written: fn(f64) -> String,
    low: f64,
    high: f64,
    ticks: Vec<f64>,
}

/// A line of a panel: a height for each number of threads.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(usize, f64)>,
}

/// An axis with explicit ticks.
struct Axis {
    low: f64,
    high: f64,
    ticks: Vec<f64>,
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let part = (value - self.low) / (self.high - self.low);
        from + (part * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.iter().copied().filter(|at| (self.low..=self.high).contains(at)).collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.low..self.high
    }
}

/// Returns an SVG file: throughput, fairness and waits, with a curve for each latch.
pub(super) fn draw(scene: &Scene, cells: &Cells<'_>, rows: &[Row]) -> anyhow::Result<String> {
    let title = format!("{} on {} (simulated)", scene.workload.name, scene.spec.name);
    let lines = |value: fn(&Row) -> f64| -> Vec<Line> {
        let line = |latch: &Subject| {
            let its = rows.iter().filter(|row| row.subject == latch.name);
            let points = its.map(|row| (row.threads, value(row))).collect();
            Line { name: latch.name.to_owned(), points }
        };
        cells.latches.iter().map(line).collect()
    };
    let speeds = lines(|row| row.ops_per_s / 1e6);
    let waits = waits(lines(|row| row.p99_ns.max(1.0).log10()), scene.workload.timed());
    let panels = [
        from_zero("million operations a second (higher is better)", speeds),
        fairness(lines(|row| row.fairness)),
        waits,
    ];
    picture(&title, &panels)
}

/// Returns an SVG file: panels below each other.
pub(super) fn picture(title: &str, panels: &[Panel]) -> anyhow::Result<String> {
    let mut svg = String::new();
    let size = (WIDTH, TITLE + HEIGHT * panels.len() as u32);
    let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    drawn(&root, title, panels).map_err(|error| anyhow!("the plot: {error}"))?;
    drop(root);
    Ok(svg)
}

fn drawn(root: &Area<'_>, title: &str, panels: &[Panel]) -> Drawn<()> {
    root.fill(&WHITE)?;
    root.draw(&Text::new(title, (12, 10), ("sans-serif", 19)))?;
    let (_, below) = root.split_vertically(TITLE);
    for (area, panel) in below.split_evenly((panels.len(), 1)).iter().zip(panels) {
        draw_panel(root, area, panel)?;
    }
    root.present()?;
    Ok(())
}

/// Ratios, from zero up.
pub(super) fn ratios(title: &str, lines: Vec<Line>) -> Panel {
    from_zero(&format!("{title}: ratio (above 1 the first latch is faster)"), lines)
}

fn from_zero(title: &str, lines: Vec<Line>) -> Panel {
    let heights = lines.iter().flat_map(|line| &line.points).map(|(_, height)| *height);
    let top = heights.fold(0.0, f64::max).max(1e-6);
    let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * 10f64.powf((top / 4.0).log10().floor()));
    let step = step.into_iter().find(|step| top / step <= 5.0).unwrap_or(top);
    Panel {
        title: title.to_owned(),
        lines,
        written: |height| super::row::rounded(height).to_string(),
        low: 0.0,
        high: top * 1.08,
        ticks: (0..=5).map(|n| f64::from(n) * step).collect(),
    }
}

fn fairness(lines: Vec<Line>) -> Panel {
    Panel {
        title: "the busier half of the threads' share of operations; 0.5 is fair".to_owned(),
        lines,
        written: |height| format!("{height:.1}"),
        low: 0.48,
        high: 1.02,
        ticks: (5..=10).map(|n| f64::from(n) / 10.0).collect(),
    }
}

/// Heights are logarithms of nanoseconds.
fn waits(lines: Vec<Line>, timed: &str) -> Panel {
    let heights = lines.iter().flat_map(|line| &line.points).map(|(_, height)| *height);
    let (low, high) =
        heights.fold((f64::MAX, 0f64), |(low, high), height| (low.min(height), high.max(height)));
    let (low, high) = (low.floor(), high.ceil().max(low.floor() + 1.0));
    Panel {
        title: format!("99 of 100 {timed} took no longer (lower is better)"),
        lines,
        written: |height| output::time(10f64.powf(height).round() as u64),
        low: low - 0.05,
        high: high + 0.05,
        ticks: (low as i32..=high as i32).map(f64::from).collect(),
    }
}

/// Ticks for numbers of threads, far enough apart not to overlap.
fn ticks(threads: &BTreeSet<usize>, width: f64, (low, high): (f64, f64)) -> Vec<f64> {
    let mut kept: Vec<f64> = Vec::new();
    for at in threads.iter().map(|threads| (*threads as f64).log2()) {
        let far = |last: &f64| (at - last) / (high - low) * width >= APART;
        if kept.last().is_none_or(far) {
            kept.push(at);
        }
    }
    kept
}

fn draw_panel(root: &Area<'_>, area: &Area<'_>, panel: &Panel) -> Drawn<()> {
    let log = |threads: usize| (threads as f64).log2();
    let points = || panel.lines.iter().flat_map(|line| &line.points);
    let threads: BTreeSet<usize> = points().map(|(threads, _)| *threads).collect();
    let (Some(first), Some(last)) = (threads.first(), threads.last()) else { return Ok(()) };
    let range = (log(*first) - 0.15, log(*last) + 0.15);
    let ticks = ticks(&threads, f64::from(WIDTH - NAMES) - 90.0, range);
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .margin_right(NAMES)
        .caption(&panel.title, ("sans-serif", 14))
        .x_label_area_size(36)
        .y_label_area_size(62)
        .build_cartesian_2d(
            Axis { low: range.0, high: range.1, ticks },
            Axis { low: panel.low, high: panel.high, ticks: panel.ticks.clone() },
        )?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(RGBColor(225, 225, 225))
        .x_label_formatter(&|at| format!("{:.0}", at.exp2()))
        .y_label_formatter(&|height| (panel.written)(*height))
        .x_desc("threads")
        .label_style(("sans-serif", 12))
        .draw()?;
    let mut names = Vec::new();
    for (number, line) in panel.lines.iter().enumerate() {
        let points = line.points.iter().map(|(threads, height)| (log(*threads), *height));
        let points: Vec<_> = points.collect();
        let ink = INKS[number % INKS.len()];
        let style = ink.stroke_width(if number < INKS.len() { 2 } else { 1 });
        match DASHES[number % DASHES.len()] {
            None => _ = chart.draw_series(LineSeries::new(points.clone(), style))?,
            Some((on, off)) => {
                let dashes = DashedLineSeries::new(points.clone(), on, off, style);
                chart.draw_series(dashes)?;
            }
        }
        let pixels: Vec<_> = points.iter().map(|point| chart.backend_coord(point)).collect();
        for at in &pixels {
            mark(root, *at, number, ink)?;
        }
        if let Some(end) = pixels.last() {
            names.push((*end, number, &*line.name));
        }
    }
    let (_, bottom) = chart.backend_coord(&(range.0, panel.low));
    name_lines(root, names, bottom)
}

/// Writes each line's name at its end; names that would overlap are moved apart.
fn name_lines(
    root: &Area<'_>,
    mut names: Vec<((i32, i32), usize, &str)>,
    bottom: i32,
) -> Drawn<()> {
    names.sort_by_key(|((_, y), number, _)| (*y, *number));
    let mut heights: Vec<i32> = names.iter().map(|((_, y), ..)| *y).collect();
    // Down as far as needed, then up from the panel's bottom.
    for at in 1..heights.len() {
        heights[at] = heights[at].max(heights[at - 1] + LINE);
    }
    let mut floor = bottom;
    for height in heights.iter_mut().rev() {
        *height = (*height).min(floor);
        floor = *height - LINE;
    }
    let x = WIDTH as i32 - NAMES as i32 + 26;
    let style =
        ("sans-serif", 13).into_font().color(&BLACK).pos(Pos::new(HPos::Left, VPos::Center));
    for (((from, y), number, name), height) in names.into_iter().zip(heights) {
        let ink = INKS[number % INKS.len()];
        let lead = vec![(from + 6, y), (x - 9, height)];
        root.draw(&PathElement::new(lead, RGBColor(190, 190, 190).stroke_width(1)))?;
        mark(root, (x, height), number, ink)?;
        root.draw(&Text::new(name.to_owned(), (x + 10, height), style.clone()))?;
    }
    Ok(())
}

/// A line's marker: filled ones first, then hollow ones, then strokes.
fn mark(root: &Area<'_>, (x, y): (i32, i32), number: usize, ink: RGBColor) -> Drawn<()> {
    let at =
        |points: &[(i32, i32)]| points.iter().map(|(dx, dy)| (x + dx, y + dy)).collect::<Vec<_>>();
    let square = [(-4, -4), (4, -4), (4, 4), (-4, 4), (-4, -4)];
    let triangle = [(0, -5), (5, 4), (-5, 4), (0, -5)];
    let diamond = [(0, -6), (5, 0), (0, 6), (-5, 0), (0, -6)];
    let hollow = |shape: &[(i32, i32)]| -> Drawn<()> {
        root.draw(&Polygon::new(at(shape), WHITE.filled()))?;
        Ok(root.draw(&PathElement::new(at(shape), ink.stroke_width(1)))?)
    };
    match number % 8 {
        0 => root.draw(&Circle::new((x, y), 4, ink.filled()))?,
        1 => hollow(&square)?,
        2 => root.draw(&Polygon::new(at(&triangle), ink.filled()))?,
        3 => hollow(&diamond)?,
        4 => root.draw(&Polygon::new(at(&square), ink.filled()))?,
        5 => hollow(&triangle)?,
        6 => root.draw(&Polygon::new(at(&diamond), ink.filled()))?,
        _ => {
            root.draw(&PathElement::new(at(&[(-4, -4), (4, 4)]), ink.stroke_width(2)))?;
            root.draw(&PathElement::new(at(&[(-4, 4), (4, -4)]), ink.stroke_width(2)))?;
        }
    }
    Ok(())
}
