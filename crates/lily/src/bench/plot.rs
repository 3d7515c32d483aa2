//! The picture: prefill and decode, tokens a second against the prompt's length.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::report::{Figures, Report};

/// Pixels.
const SIZE: (u32, u32) = (1100, 460);
const FONT: &str = "sans-serif";
const LINE: RGBColor = RGBColor(0x1f, 0x5f, 0xa8);
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);

/// An SVG of what the report has so far, on an axis of all `lengths` that are to be measured.
pub(crate) fn svg(report: &Report, lengths: &[usize]) -> Result<String> {
    let mut svg = String::new();
    // The errors of the drawing library borrow what is drawn on.
    draw(&mut svg, report, lengths).map_err(|error| anyhow!("the plot cannot be drawn: {error}"))?;
    Ok(svg)
}

fn draw(svg: &mut String, report: &Report, lengths: &[usize]) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let title = format!("{} on {} ({})", report.model, report.machine.processor, report.runs_on());
    let panels = area.titled(&title, (FONT, 18))?.split_evenly((1, 2));
    let panel = |index: usize, name: &str, figure: fn(&Figures) -> f64| {
        let points = report.lengths.iter().map(|row| (row.figures.length as f64, figure(&row.figures))).collect();
        draw_panel(&panels[index], name, lengths, points)
    };
    panel(0, "prefill, tokens/s", |figures| figures.prefill_tokens_per_second)?;
    panel(1, "decode, tokens/s", |figures| figures.decode_tokens_per_second)?;
    area.present()?;
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw_panel(
    area: &Area<'_>,
    name: &str,
    lengths: &[usize],
    mut points: Vec<(f64, f64)>,
) -> Result<(), Box<dyn std::error::Error>> {
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut ticks: Vec<f64> = lengths.iter().map(|&length| length as f64).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    let (first, last) = (ticks.first().copied().unwrap_or(1.0), ticks.last().copied().unwrap_or(1.0));
    let highest = points.iter().map(|point| point.1).fold(0.0, f64::max);
    // Room beside the outer points and above the highest.
    let x = (first / 1.2..last * 1.2).log_scale().with_key_points(ticks.clone());
    let y = 0.0..if highest > 0.0 { 1.15 * highest } else { 1.0 };
    let mut chart = ChartBuilder::on(area)
        .caption(name, (FONT, 16))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(56)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .x_labels(ticks.len())
        .x_label_formatter(&|&length| tick(length))
        .x_desc("prompt length, tokens")
        .label_style((FONT, 12))
        .draw()?;
    chart.draw_series(LineSeries::new(points.iter().copied(), LINE.stroke_width(2)).point_size(3))?;
    let above = |&(length, speed): &(f64, f64)| {
        let style = TextStyle::from((FONT, 12)).color(&LINE);
        EmptyElement::at((length, speed)) + Text::new(format!("{speed:.1}"), (-12, -18), style)
    };
    chart.draw_series(points.iter().map(above))?;
    Ok(())
}

/// 256, 512, 1K, …
fn tick(length: f64) -> String {
    let length = length.round() as usize;
    if length >= 1024 && length.is_multiple_of(1024) { format!("{}K", length / 1024) } else { length.to_string() }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn the_picture_has_both_panels_and_every_length() {
        let svg = svg(&report(), &[256, 512, 1024, 2048]).unwrap();
        for text in ["prefill, tokens/s", "decode, tokens/s", "256", "512", "1K", "2K", "32.0", "6.4", "some/model"] {
            assert!(svg.lines().any(|line| line.starts_with(text)), "{text}: {svg}");
        }
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
    }

    #[test]
    fn a_single_length_and_none_yet_can_be_drawn() {
        let mut report = report();
        report.lengths.truncate(1);
        assert!(svg(&report, &[256]).unwrap().contains("32.0"));
        report.lengths.clear();
        assert!(svg(&report, &[256]).unwrap().contains("256"));
    }
}
