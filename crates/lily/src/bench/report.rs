//! What a run found, as it goes into files.

use std::io::Write;

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;

use super::child::Told;
use super::cost::Cost;
use super::machine::Machine;
use super::measure::Contract;

/// A whole run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// Lily's version.
    pub(crate) lily: &'static str,
    /// The checkpoint's name.
    pub(crate) model: String,
    pub(crate) settings: Settings,
    pub(crate) machine: Machine,
    pub(crate) cost: Cost,
    /// In the order measured.
    pub(crate) lengths: Vec<Row>,
}

/// How it was measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Settings {
    pub(crate) backend: &'static str,
    pub(crate) simd: String,
    pub(crate) threads: usize,
    pub(crate) steps: usize,
    pub(crate) repeats: usize,
    pub(crate) chunk: usize,
}

/// What was found for one length.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    #[serde(flatten)]
    pub(crate) figures: Figures,
    /// Of each repeat.
    pub(crate) prefill_seconds: Vec<f64>,
    /// Of each repeat, all steps together.
    pub(crate) decode_seconds: Vec<f64>,
}

/// The medians of one length and what follows from them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Figures {
    pub(crate) length: usize,
    pub(crate) prefill_tokens_per_second: f64,
    pub(crate) prefill_gmac_per_second: f64,
    pub(crate) prefill_share_of_peak: Option<f64>,
    pub(crate) decode_tokens_per_second: f64,
    pub(crate) decode_gb_per_second: f64,
    pub(crate) decode_share_of_bandwidth: Option<f64>,
    pub(crate) peak_memory_bytes: Option<u64>,
    pub(crate) digest: String,
}

impl Row {
    pub(crate) fn new(contract: &Contract, told: Told, cost: &Cost, machine: &Machine) -> Self {
        let Contract { length, steps, .. } = *contract;
        let (prefill, decode) = (median(&told.measured.prefill_seconds), median(&told.measured.decode_seconds));
        let gmac = cost.prefill_multiplications(length) as f64 / prefill / 1e9;
        let gb = cost.decode_bytes(length, steps) as f64 / decode / 1e9;
        let figures = Figures {
            length,
            prefill_tokens_per_second: length as f64 / prefill,
            prefill_gmac_per_second: gmac,
            prefill_share_of_peak: machine.roofs.map(|roofs| gmac / roofs.peak_gmac_per_second),
            decode_tokens_per_second: steps as f64 / decode,
            decode_gb_per_second: gb,
            decode_share_of_bandwidth: machine.roofs.map(|roofs| gb / roofs.read_gb_per_second),
            peak_memory_bytes: told.peak_memory,
            digest: told.measured.digest,
        };
        Self { figures, prefill_seconds: told.measured.prefill_seconds, decode_seconds: told.measured.decode_seconds }
    }
}

/// The middle value, or the mean of the two in the middle; NaN of none.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[count / 2],
        count => f64::midpoint(sorted[count / 2 - 1], sorted[count / 2]),
    }
}

impl Report {
    /// What computes: `cpu (avx2, 2 threads)`, or a GPU's backend.
    pub(crate) fn runs_on(&self) -> String {
        let Settings { backend, simd, threads, .. } = &self.settings;
        let plural = if *threads == 1 { "thread" } else { "threads" };
        match self.machine.roofs {
            Some(_) => format!("{backend} ({simd}, {threads} {plural})"),
            None => (*backend).to_owned(),
        }
    }

    /// Indented JSON and a line end.
    pub(crate) fn write_json(&self, mut out: impl Write) -> Result<()> {
        serde_json::to_writer_pretty(&mut out, self)?;
        writeln!(out)?;
        Ok(out.flush()?)
    }

    /// A header and a line a length, each complete by itself so that the files of several runs can be joined. Columns are
    /// named as in the JSON.
    pub(crate) fn write_csv(&self, out: impl Write) -> Result<()> {
        let mut csv = csv::Writer::from_writer(out);
        for (index, row) in self.lengths.iter().enumerate() {
            let mut columns = serde_json::Map::new();
            columns.insert("model".into(), self.model.as_str().into());
            columns.insert("processor".into(), self.machine.processor.as_str().into());
            columns.insert("simd".into(), self.settings.simd.as_str().into());
            columns.insert("threads".into(), self.settings.threads.into());
            if let Value::Object(figures) = serde_json::to_value(&row.figures)? {
                columns.extend(figures);
            }
            if index == 0 {
                csv.write_record(columns.keys())?;
            }
            csv.write_record(columns.values().map(|value| match value {
                Value::String(text) => text.clone(),
                Value::Null => String::new(),
                number => number.to_string(),
            }))?;
        }
        Ok(csv.flush()?)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::machine::Roofs;
    use super::super::measure::Measured;
    use super::*;

    /// A run of two lengths with round figures.
    pub(crate) fn report() -> Report {
        let machine = Machine {
            processor: "Some Processor, 2nd".into(),
            cores: 2,
            memory: 24 << 30,
            load_average: Some(0.1),
            roofs: Some(Roofs { read_gb_per_second: 16.0, peak_gmac_per_second: 200.0 }),
        };
        let cost = Cost {
            weight_bytes: 1_000_000_000,
            state_bytes: 50_000_000,
            kv_bytes_per_token: 0,
            layer_multiplications: 3_000_000_000,
            head_multiplications: 0,
        };
        let settings = Settings { backend: "cpu", simd: "avx2".into(), threads: 2, steps: 64, repeats: 3, chunk: 512 };
        let row = |length, prefill_seconds: &[f64], peak_memory| {
            let contract = Contract { length, steps: 64, repeats: 3, chunk: 512, vocabulary: 100 };
            let (prefill_seconds, digest) = (prefill_seconds.to_vec(), format!("{length:016x}"));
            let measured = Measured { prefill_seconds, decode_seconds: vec![16.0, 8.0, 10.0], digest };
            Row::new(&contract, Told { measured, peak_memory }, &cost, &machine)
        };
        let lengths = vec![row(256, &[8.0, 9.0, 7.0], Some(20 << 30)), row(512, &[32.0, 8.0, 16.0], None)];
        Report { lily: "1.2.3", model: "some/model".into(), settings, machine, cost, lengths }
    }

    #[test]
    fn figures_come_from_medians() {
        let figures = &report().lengths[0].figures;
        assert_eq!(figures.prefill_tokens_per_second, 32.0);
        assert_eq!((figures.prefill_gmac_per_second, figures.prefill_share_of_peak), (96.0, Some(0.48)));
        assert_eq!(figures.decode_tokens_per_second, 6.4);
        assert_eq!((figures.decode_gb_per_second, figures.decode_share_of_bandwidth), (7.04, Some(0.44)));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
    }

    #[test]
    fn json_has_it_all() {
        let mut json = Vec::new();
        report().write_json(&mut json).unwrap();
        let json: Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(json["model"], "some/model");
        assert_eq!(json["settings"]["simd"], "avx2");
        assert_eq!(json["machine"]["read_gb_per_second"], 16.0);
        assert_eq!(json["cost"]["weight_bytes"], 1_000_000_000);
        assert_eq!(json["lengths"][1]["length"], 512);
        assert_eq!(json["lengths"][1]["prefill_seconds"][0], 32.0);
        assert_eq!(json["lengths"][1]["peak_memory_bytes"], Value::Null);
    }

    #[test]
    fn csv_is_a_line_a_length() {
        let mut csv = Vec::new();
        report().write_csv(&mut csv).unwrap();
        let expected = "model,processor,simd,threads,length,prefill_tokens_per_second,prefill_gmac_per_second,\
            prefill_share_of_peak,decode_tokens_per_second,decode_gb_per_second,decode_share_of_bandwidth,\
            peak_memory_bytes,digest\n\
            some/model,\"Some Processor, 2nd\",avx2,2,256,32.0,96.0,0.48,6.4,7.04,0.44,21474836480,0000000000000100\n\
            some/model,\"Some Processor, 2nd\",avx2,2,512,32.0,96.0,0.48,6.4,7.04,0.44,,0000000000000200\n";
        assert_eq!(String::from_utf8(csv).unwrap(), expected);
    }
}
