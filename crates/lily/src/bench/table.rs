//! The table for the terminal.

use super::report::{Report, Row};

/// What stands above the rows: model, machine, roofs, and the columns' names.
pub(crate) fn header(report: &Report) -> String {
    let Report { lily, model, settings, machine, .. } = report;
    let gib = machine.memory as f64 / f64::from(1 << 30);
    let load = machine.load_average.map_or_else(String::new, |load| format!(", load average {load:.2}"));
    let best = machine.roofs.map_or_else(String::new, |roofs| {
        format!(
            "; at best reads {:.1} GB/s, multiplies {:.0} GMAC/s",
            roofs.read_gb_per_second, roofs.peak_gmac_per_second
        )
    });
    format!(
        "{model}, lily {lily}\n\
         {processor}, {cores} cores, {gib:.1} GiB{load}\n\
         {runs_on}{best}\n\
         medians of {repeats} after a warm-up; {steps} greedy steps after the prompt; prompt in chunks of {chunk}\n\
         \n\
         {empty:>7}  {prefill}  {decode}\n\
         {length:>7}  {tokens:>9}{gmac:>9}{of_peak:>9}  {tokens:>9}{gb:>9}{of_peak:>9}  {memory:>11}  digest",
        processor = machine.processor,
        runs_on = report.runs_on(),
        cores = machine.cores,
        repeats = settings.repeats,
        steps = settings.steps,
        chunk = settings.chunk,
        empty = "",
        prefill = "--------- prefill ---------",
        decode = "--------- decode ----------",
        length = "length",
        tokens = "tokens/s",
        gmac = "GMAC/s",
        gb = "GB/s",
        of_peak = "of best",
        memory = "peak memory",
    )
}

/// A row, aligned with the header.
pub(crate) fn row(row: &Row) -> String {
    let figures = &row.figures;
    let percent = |share: Option<f64>| share.map_or_else(|| "-".into(), |share| format!("{:.0} %", 100.0 * share));
    let memory = figures
        .peak_memory_bytes
        .map_or_else(|| "-".into(), |bytes| format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30)));
    format!(
        "{:>7}  {:>9}{:>9}{:>9}  {:>9}{:>9}{:>9}  {memory:>11}  {}",
        figures.length,
        digits(figures.prefill_tokens_per_second),
        digits(figures.prefill_gmac_per_second),
        percent(figures.prefill_share_of_peak),
        digits(figures.decode_tokens_per_second),
        digits(figures.decode_gb_per_second),
        percent(figures.decode_share_of_bandwidth),
        figures.digest,
    )
}

/// Three digits or more, and no more places than they need.
fn digits(value: f64) -> String {
    let places = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.places$}")
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let report = report();
        let header = header(&report);
        let names = header.lines().last().unwrap();
        let rows: Vec<String> = report.lengths.iter().map(row).collect();
        assert_eq!(
            rows[0],
            "    256       32.0     96.0     48 %       6.40     7.04     44 %    20.00 GiB  0000000000000100"
        );
        for row in &rows {
            assert_eq!(row.find("0000000000"), names.find("digest"), "{header}\n{row}");
            assert_eq!(row.find(" %"), names.find("of best").map(|at| at + 5), "{header}\n{row}");
        }
        assert!(header.lines().all(|line| line.trim_end().len() <= 110), "{header}");
    }

    #[test]
    fn digits_are_three_or_more() {
        assert_eq!([0.034, 6.4, 14.46, 99.96, 1234.5].map(digits), ["0.03", "6.40", "14.5", "100.0", "1234"]);
    }
}
