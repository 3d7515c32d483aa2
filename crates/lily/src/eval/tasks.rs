//! Accuracy on held-out task cases, greedy, scored as models/tiny/eval/README.md says.

use std::collections::BTreeMap;
use std::io::{Write, stdout};
use std::path::Path;

use anyhow::{Context, Result, bail};
use lily_chat::{Detokenizer, Prompt};
use lily_engine::{Engine, Event, FinishReason, Request};
use serde::Deserialize;

use crate::eval::bar;
use crate::load::Model;

/// One line of the cases' file.
#[derive(Debug, Deserialize)]
struct Case {
    task: String,
    think: bool,
    messages: Vec<serde_json::Value>,
    tools: Vec<serde_json::Value>,
    expect: String,
    keys: Vec<String>,
    exact: bool,
    limit: usize,
}

/// Prints the accuracy of each task in `file`.
pub(crate) fn report(model: &Model, file: &Path) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| format!("{}: cannot be read", file.display()))?;
    let cases = text
        .lines()
        .enumerate()
        .map(|(line, json)| {
            serde_json::from_str(json).with_context(|| format!("{} line {}: not a case", file.display(), line + 1))
        })
        .collect::<Result<Vec<Case>>>()?;
    let engine = model.start()?;
    let bar = bar(cases.len(), "answers");
    let mut scores: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    let next = std::sync::Mutex::new(cases.iter());
    let answered = std::thread::scope(|scope| {
        let answer_some = || -> Result<Vec<(&Case, bool)>> {
            let mut done = Vec::new();
            loop {
                let taken = next.lock().expect("no thread panics with the lock held").next();
                let Some(case) = taken else { return Ok(done) };
                let (text, ended) = answer(model, &engine, case)?;
                done.push((case, ended && is_right(case, &text)));
                bar.inc(1);
            }
        };
        let workers: Vec<_> = (0..model.plan.parallel).map(|_| scope.spawn(answer_some)).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("a panic in a worker is ours"))
            .collect::<Result<Vec<_>>>()
    })?;
    bar.finish_and_clear();
    for (case, right) in answered.into_iter().flatten() {
        let score = scores.entry(&case.task).or_default();
        score.0 += usize::from(right);
        score.1 += 1;
    }
    for (task, (right, all)) in &scores {
        writeln!(stdout(), "{task:<16} {:.2}  {right}/{all}", *right as f64 / *all as f64)?;
    }
    let (right, all) = scores.values().fold((0, 0), |sum, score| (sum.0 + score.0, sum.1 + score.1));
    writeln!(stdout(), "{:<16} {:.4}  {right}/{all}", "all", right as f64 / all.max(1) as f64)?;
    Ok(())
}

/// The greedy answer, special tokens left out, and whether the model ended it itself.
fn answer(model: &Model, engine: &Engine, case: &Case) -> Result<(String, bool)> {
    let mut kwargs = serde_json::Map::new();
    kwargs.insert("enable_thinking".into(), case.think.into());
    let prompt =
        Prompt { messages: case.messages.clone(), tools: case.tools.clone(), add_generation_prompt: true, kwargs };
    let prompt = model.tokenizer.encode(&model.template.render(&prompt)?)?;
    let mut reply = engine.submit(Request {
        stop_tokens: model.checkpoint.generation.eos_token_ids.clone(),
        ..Request::new(prompt, case.limit)
    })?;
    let mut detokenizer = Detokenizer::new(std::sync::Arc::clone(&model.tokenizer));
    let mut text = String::new();
    loop {
        match reply.blocking_recv() {
            Some(Event::Started { .. } | Event::Prefill { .. }) => {}
            Some(Event::Token(sample)) => text.push_str(&detokenizer.push(sample.token)),
            Some(Event::Finished { reason, .. }) => {
                text.push_str(&detokenizer.finish());
                return Ok((text, reason == FinishReason::Stop));
            }
            Some(Event::Failed(why)) => bail!("{}: {why}", case.task),
            None => bail!("{}: the engine gave no end", case.task),
        }
    }
}

fn is_right(case: &Case, text: &str) -> bool {
    let after_thinking = if case.think { text.split_once("</think>").map(|(_, answer)| answer) } else { Some(text) };
    let Some(answer) = after_thinking.map(str::trim) else { return false };
    match case.task.as_str() {
        "tool_call" | "tool_parallel" => answer.find("<tool_call>").is_some_and(|at| answer[at..] == case.expect),
        "tool_answer" => answer == case.expect,
        "tool_none" => !answer.contains("<tool_call>") && answer == case.expect,
        _ if case.exact => answer == case.expect.trim(),
        "markdown" | "writing" => {
            let answer = answer.to_lowercase();
            !answer.is_empty() && case.keys.iter().all(|key| answer.contains(&key.to_lowercase()))
        }
        _ => !answer.is_empty() && case.keys.iter().all(|key| answer.contains(key)),
    }
}

#[cfg(test)]
mod tests {
    use super::{Case, is_right};

    fn case(task: &str, think: bool, exact: bool) -> Case {
        let keys = vec!["Oslo".to_string()];
        let (messages, tools) = (Vec::new(), Vec::new());
        Case { task: task.into(), think, messages, tools, expect: "It is Oslo.".into(), keys, exact, limit: 9 }
    }

    #[test]
    fn scores_as_the_readme_says() {
        assert!(is_right(&case("facts", false, false), "Oslo, of course"));
        assert!(!is_right(&case("facts", false, false), "oslo"));
        assert!(is_right(&case("writing", false, false), "oslo"));
        assert!(!is_right(&case("facts", true, false), "Oslo, without an end of thinking"));
        assert!(is_right(&case("facts", true, false), "hm\n</think>\n\nOslo"));
        assert!(is_right(&case("copy", false, true), " It is Oslo.\n"));
        assert!(!is_right(&case("copy", false, true), "It is Oslo"));
        assert!(!is_right(&case("tool_call", false, false), "I look. It is Oslo."));
        assert!(!is_right(&case("tool_none", false, false), "<tool_call>It is Oslo."));
        assert!(is_right(&case("tool_none", false, false), "It is Oslo."));
    }
}
