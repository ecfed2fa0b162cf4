//! Which scenarios are run: every position of the fixed scripts with every fault, crash loops, and scripts by seed.

use crate::coverage::Coverage;
use crate::faults::{Again, Fault, Kind, Lateness, Plan};
use crate::invariants::{Violation, broken, require};
use crate::manners::{HookManner, Manner, Manners, Reach};
use crate::script::{self, Script, submit};
use crate::world::{Shape, World};
use agentdo::agent::Command;
use agentdo::agent::state::Mode;
use agentdo::model::FailureKind;
use agentdo::platform::host::SeededRandom;
use std::collections::BTreeMap;

/// Everything that was run.
#[derive(Default)]
pub struct Runs {
    pub coverage: Coverage,
    /// Distinct pairs of a script with manners and a plan.
    pub points: u64,
    /// With `KEEP_GOING=1`: how often each invariant was broken, and the first line of each.
    pub broken: BTreeMap<&'static str, (u64, String)>,
}

/// A failure line: the invariant, what was seen, and all that is needed to see it again.
fn line(violation: &Violation, script: &Script, plan: &Plan) -> String {
    format!("[{}] {} | {plan} | {script}", violation.invariant, violation.detail)
}

impl Runs {
    fn one(&mut self, script: &Script, manners: &Manners, plan: &Plan) -> Result<(u64, Shape), String> {
        self.points += 1;
        let (transactions, ran) = World::new(script, manners, plan, &mut self.coverage, false).run();
        match ran {
            Ok(shape) => Ok((transactions, shape)),
            Err(violation) if std::env::var("KEEP_GOING").is_ok() => {
                let first = line(&violation, script, plan);
                self.broken.entry(violation.invariant).or_insert((0, first)).0 += 1;
                Ok((0, Shape::default()))
            }
            Err(violation) => {
                if std::env::var("TRACE").is_ok() {
                    let _ = World::new(script, manners, plan, &mut self.coverage, true).run();
                }
                Err(line(&violation, script, plan))
            }
        }
    }

    fn expect(
        &mut self,
        script: &Script,
        manners: &Manners,
        plan: &Plan,
        wanted: impl Fn(&Shape) -> bool,
    ) -> Result<(), String> {
        let (_, shape) = self.one(script, manners, plan)?;
        if shape.status.is_empty() {
            return Ok(());
        }
        let fits = require(wanted(&shape), "the scenario ends as it should", || format!("{shape:?}"));
        match fits {
            Err(violation) if std::env::var("KEEP_GOING").is_ok() => {
                let first = line(&violation, script, plan);
                self.broken.entry(violation.invariant).or_insert((0, first)).0 += 1;
                Ok(())
            }
            fits => fits.map_err(|violation| line(&violation, script, plan)),
        }
    }

    /// A script: calm, with each fault at each position, with pairs of faults.
    fn enumerate(&mut self, script: &Script, manners: &Manners, seed: u64, pairs: u64) -> Result<(), String> {
        let calm = Plan::calm(seed);
        let (transactions, shape) = self.one(script, manners, &calm)?;
        for lateness in [Lateness::Ms(1_500), Lateness::Ms(7_200_000)] {
            self.one(script, manners, &Plan { lateness, stray_alarms: true, ..calm.clone() })?;
        }
        let effects: u64 = shape.effects.iter().map(|(_, count)| count).sum();
        let idle: Vec<u64> = shape.effects.iter().filter(|(_, count)| *count == 0).map(|(at, _)| *at).collect();
        let every = |kind, last: u64| (1..=last).map(move |at| Fault { kind, at });
        let faults: Vec<Fault> = every(Kind::BeforeCommit, transactions)
            .chain(every(Kind::AfterCommit, transactions))
            .chain(every(Kind::StorageError, transactions))
            .chain(every(Kind::AfterEffect, effects))
            .chain(idle.into_iter().map(|at| Fault { kind: Kind::Waiting, at }))
            .collect();
        for (n, fault) in faults.iter().enumerate() {
            let plan = Plan { faults: vec![*fault], client_repeats: n % 2 == 0, ..calm.clone() };
            self.one(script, manners, &plan)?;
            let plan = Plan {
                late_answers: true,
                stray_alarms: n % 3 == 0,
                client_repeats: n % 2 == 1,
                lateness: if n % 5 == 0 { Lateness::Random } else { Lateness::Never },
                ..plan
            };
            self.one(script, manners, &plan)?;
        }
        let chance = SeededRandom::new(seed ^ 0xfa17);
        for n in 0..pairs {
            let first = faults[chance.below(faults.len())];
            // Near the first: in what follows the wake.
            let near = 1 + u64::try_from(chance.below(12)).unwrap_or(0);
            let second = Fault { kind: faults[chance.below(faults.len())].kind, at: first.at + near };
            let plan = Plan {
                seed: seed ^ n,
                faults: vec![first, second],
                late_answers: chance.below(2) == 0,
                client_repeats: chance.below(2) == 0,
                stray_alarms: chance.below(3) == 0,
                lateness: if chance.below(3) == 0 { Lateness::Random } else { Lateness::Never },
                ..calm.clone()
            };
            self.one(script, manners, &plan)?;
        }
        Ok(())
    }

    /// Scripts 1 and 2 and their relatives; `part` of several parts.
    pub fn fixed_scripts(&mut self, part: usize, parts: usize) -> Result<(), String> {
        let (plain, rough, bare) = (Manners::plain(), Manners::rough(), Manners::bare());
        let mut fixed: Vec<(Script, &Manners, u64, u64)> = Vec::new();
        for manners in [&plain, &rough, &bare] {
            fixed.push((script::one_turn(), manners, 1, 60));
            fixed.push((script::undisturbed(), manners, 2, 60));
        }
        for stop_at in 0..script::STOPS.len() {
            let seed = 10 + u64::try_from(stop_at).unwrap_or(0);
            let even = stop_at % 2 == 0;
            fixed.push((script::two_rounds(stop_at), &rough, seed, 60));
            fixed.push((script::two_rounds(stop_at), if even { &plain } else { &bare }, seed, 30));
            fixed.push((script::interrupted(stop_at, even), if even { &rough } else { &plain }, seed, 30));
        }
        let mine = fixed.iter().enumerate().filter(|(n, _)| n % parts == part);
        mine.map(|(_, fixed)| fixed)
            .try_for_each(|(script, manners, seed, pairs)| self.enumerate(script, manners, *seed, *pairs))
    }

    /// The same death at the same point again and again: four are forgiven, five park, `retry` finishes. A held hook
    /// may die as often as it likes.
    pub fn crash_loops(&mut self) -> Result<(), String> {
        let loops = [
            (Kind::AfterEffect, "AskHooks", "hook_crash"),
            (Kind::BeforeCommit, "HooksAnswered", "hook_crash"),
            (Kind::AfterEffect, "AskGate", "call_crash"),
            (Kind::AfterEffect, "Authorize", "call_crash"),
            (Kind::BeforeCommit, "Authorized", "call_crash"),
            (Kind::AfterCommit, "Authorized", "call_crash"),
            (Kind::AfterEffect, "CallModel", "call_crash"),
            (Kind::AfterCommit, "StreamBatch", "call_crash"),
            (Kind::AfterEffect, "AskToolHooks", "hook_crash"),
            (Kind::BeforeCommit, "ToolHooksAnswered", "hook_crash"),
            (Kind::BeforeCommit, "ToolEnded", "tool_crash"),
        ];
        let plain = Manners::plain();
        for (kind, label, reason) in loops {
            for times in [1, 3, 4, 5, 6, 7, 9] {
                for late_answers in [false, true] {
                    let script = Script::new("a loop").then(0, submit("m1", Mode::FollowUp, "look"));
                    let again = Some(Again { kind, label, times });
                    let plan = Plan { again, late_answers, ..Plan::calm(u64::from(times)) };
                    let parks = times >= 5;
                    // A late piece of a dead instance kills the next one while it asks its hooks: such deaths count apart.
                    let mixed = late_answers && label == "StreamBatch";
                    self.expect(&script, &plain, &plan, |shape| match (&shape.parked_once, parks) {
                        (None, true) if mixed => shape.status == "idle" && shape.last_reasons == ["done"],
                        (Some(parked), true) => {
                            shape.status == "parked" && (parked == reason || (mixed && parked == "hook_crash"))
                        }
                        (None, false) => shape.status == "idle" && shape.last_reasons == ["done"],
                        _ => false,
                    })?;
                    let script = script.then(900_000, Command::Retry);
                    self.expect(&script, &plain, &plan, |shape| {
                        shape.status == "idle" && shape.last_reasons == ["done"]
                    })?;
                    let stopped = Script::new("a loop that is stopped")
                        .then(0, submit("m1", Mode::FollowUp, "look"))
                        .then(900_000, script::stop());
                    self.expect(&stopped, &plain, &plan, |shape| shape.status == "stopped")?;
                }
            }
        }
        // An answer that is stored is not asked for again, so that the same death does not come again.
        for label in ["HooksAnswered", "GateAnswered", "ModelEnded", "ToolEnded"] {
            let script = Script::new("no loop").then(0, submit("m1", Mode::FollowUp, "look"));
            let plan = Plan { again: Some(Again { kind: Kind::AfterCommit, label, times: 9 }), ..Plan::calm(2) };
            self.expect(&script, &plain, &plan, |shape| shape.parked_once.is_none() && shape.last_reasons == ["done"])?;
        }
        // An unsafe tool has one chance only, and so never parks.
        let script = Script::new("a loop").then(0, submit("m1", Mode::FollowUp, "write,write"));
        for kind in [Kind::AfterEffect, Kind::AfterCommit] {
            let label = if kind == Kind::AfterEffect { "RunTool" } else { "ToolHooksAnswered" };
            let plan = Plan { again: Some(Again { kind, label, times: 9 }), ..Plan::calm(3) };
            self.expect(&script, &plain, &plan, |shape| shape.parked_once.is_none() && shape.last_reasons == ["done"])?;
        }
        self.held_hooks()
    }

    fn held_hooks(&mut self) -> Result<(), String> {
        let held = vec![HookManner::After(20_000); 60];
        let manners = Manners { hooks: held.clone(), tool_hooks: held, ..Manners::plain() };
        for label in ["HooksPending", "ToolHooksPending"] {
            for kind in [Kind::AfterCommit, Kind::Waiting] {
                for late_answers in [false, true] {
                    let script = Script::new("held").then(0, submit("m1", Mode::FollowUp, "write"));
                    let plan = Plan { again: Some(Again { kind, label, times: 50 }), late_answers, ..Plan::calm(4) };
                    self.expect(&script, &manners, &plan, |shape| {
                        shape.parked_once.is_none() && shape.status == "idle" && shape.last_reasons == ["done"]
                    })?;
                }
            }
        }
        // One tool parks while another is only held: `retry` must not start the other a second time.
        let held = std::iter::once(HookManner::After(15)).chain(vec![HookManner::After(40_000); 40]).collect();
        let manners = Manners { tool_hooks: held, ..Manners::plain() };
        for plan_of_tools in ["slow+slow", "slow+write"] {
            for n in 0..40 {
                let script = Script::new("one parks, the other is held")
                    .then(0, submit("m1", Mode::FollowUp, plan_of_tools))
                    .once("status", 2, 500 + 1_500 * n, Command::Retry);
                let again = Some(Again { kind: Kind::BeforeCommit, label: "ToolEnded", times: 5 });
                let seed = 40 + u64::try_from(n).unwrap_or(0);
                let plan = Plan { again, late_answers: n % 2 == 0, ..Plan::calm(seed) };
                self.expect(&script, &manners, &plan, |shape| {
                    shape.status == "idle" && shape.last_reasons == ["done"]
                })?;
            }
        }
        // One tool parks while the hook of another is asked again: what a dead instance says of that one is late.
        let tool_hooks: Vec<HookManner> =
            std::iter::once(HookManner::After(15)).chain(vec![HookManner::After(4_000); 40]).collect();
        let manners = Manners { tool_hooks, reach: vec![Reach::Ignores], ..Manners::plain() };
        for times in 5..8 {
            for at in 20..60 {
                let script = Script::new("one parks, the other is asked")
                    .then(0, submit("m1", Mode::FollowUp, "look+look"))
                    .then(600_000, submit("m2", Mode::Steer, ""))
                    .then(10_000, Command::Retry);
                let again = Some(Again { kind: Kind::AfterEffect, label: "RunTool", times });
                let faults = vec![Fault { kind: Kind::Waiting, at }];
                let plan = Plan { again, faults, late_answers: true, ..Plan::calm(at) };
                self.expect(&script, &manners, &plan, |shape| shape.status == "idle")?;
            }
        }
        Ok(())
    }

    /// The new deployment has no model for the tier: the run ends, and says why.
    pub fn models_gone(&mut self) -> Result<(), String> {
        let script = Script::new("models gone").then(0, submit("m1", Mode::FollowUp, "look"));
        for at in 1..24 {
            for kind in [Kind::BeforeCommit, Kind::AfterCommit, Kind::Waiting] {
                let plan = Plan { faults: vec![Fault { kind, at }], models_gone_from: Some(1), ..Plan::calm(at) };
                self.expect(&script, &Manners::plain(), &plan, |shape| {
                    shape.last_reasons.iter().all(|reason| reason == "done" || reason == "config")
                })?;
            }
        }
        // The same while a stop is under way.
        for at in 12..24 {
            let script = Script::new("models gone in a stop").then(0, submit("m1", Mode::FollowUp, "")).once(
                "call_started",
                1,
                10,
                script::stop(),
            );
            let manners = Manners { reach: vec![Reach::Silent], ..Manners::plain() };
            let plan = Plan {
                faults: vec![Fault { kind: Kind::AfterCommit, at: at - 4 }],
                models_gone_from: Some(1),
                ..Plan::calm(at)
            };
            self.expect(&script, &manners, &plan, |shape| shape.status == "stopped")?;
        }
        Ok(())
    }

    /// Three runs end with the same failure: the agent parks, what comes then waits, and `retry` goes on.
    pub fn repeated_failure(&mut self) -> Result<(), String> {
        let filtered = Manner::Refuse { kind: FailureKind::ContentFilter, retry_after_ms: None };
        let manners = Manners { model: vec![filtered; 3], ..Manners::plain() };
        let script = Script::new("three failures")
            .then(0, submit("m1", Mode::FollowUp, ""))
            .then(5, submit("m2", Mode::FollowUp, ""))
            .then(5, submit("m3", Mode::FollowUp, ""))
            .then(5, submit("m4", Mode::FollowUp, "look"))
            .then(300_000, submit("m5", Mode::Steer, ""));
        self.expect(&script, &manners, &Plan::calm(5), |shape| {
            shape.status == "parked" && shape.last_reasons.len() == 3
        })?;
        let script = script.then(60_000, Command::Retry);
        self.expect(&script, &manners, &Plan::calm(5), |shape| {
            shape.last_reasons == ["content_filter", "content_filter", "content_filter", "done", "done"]
        })?;
        self.enumerate(&script, &manners, 5, 20)
    }

    /// A second interrupt, that takes the queue along, comes while the first waits for a tool that ignores it.
    pub fn interrupted_twice(&mut self) -> Result<(), String> {
        let script = Script::new("interrupted twice")
            .then(0, submit("m1", Mode::FollowUp, "slow"))
            .then(5, submit("f1", Mode::FollowUp, "look"))
            .once("tool_started", 1, 30, Command::Interrupt { keep_queue: true })
            .then(500, Command::Interrupt { keep_queue: false });
        let manners = Manners { reach: vec![Reach::Ignores], ..Manners::plain() };
        self.expect(&script, &manners, &Plan::calm(6), |shape| shape.last_reasons == ["interrupted", "interrupted"])?;
        self.enumerate(&script, &manners, 6, 20)
    }

    /// A script by its seed, with up to three faults.
    pub fn random_script(&mut self, seed: u64, trace: bool) -> Result<(), String> {
        let random = SeededRandom::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let script = script::random(&random, seed);
        let manners = Manners::random(&random);
        let kinds = [Kind::BeforeCommit, Kind::AfterCommit, Kind::AfterEffect, Kind::Waiting, Kind::StorageError];
        let faults = (0..random.below(4))
            .map(|_| Fault {
                kind: kinds[random.below(kinds.len())],
                at: 1 + u64::try_from(random.below(120)).unwrap_or(0),
            })
            .collect();
        let plan = Plan {
            seed,
            faults,
            again: None,
            late_answers: random.below(3) > 0,
            client_repeats: random.below(2) == 0,
            stray_alarms: random.below(3) == 0,
            lateness: [Lateness::Never, Lateness::Never, Lateness::Random][random.below(3)],
            models_gone_from: None,
        };
        if trace {
            eprintln!("{script}\n{manners:?}\n{plan}");
            let (_, ran) = World::new(&script, &manners, &plan, &mut self.coverage, true).run();
            return ran.map(|_| ()).map_err(|violation| line(&violation, &script, &plan));
        }
        self.one(&script, &manners, &plan).map(|_| ())
    }

    /// One part of all of it.
    pub fn everything(&mut self, seeds: u64, part: usize, parts: usize) -> Result<(), String> {
        // `ONLY=random` leaves out what is enumerated.
        if std::env::var("ONLY").is_err() {
            // What is directed first: it sees most of what can be seen in the least time.
            if part == 0 {
                self.crash_loops()?;
                self.models_gone()?;
                self.repeated_failure()?;
                self.interrupted_twice()?;
            }
            self.fixed_scripts(part, parts)?;
        }
        let mine = (1..=seeds).filter(|seed| usize::try_from(*seed).is_ok_and(|seed| seed % parts == part));
        for seed in mine {
            self.random_script(seed, false)?;
        }
        Ok(())
    }

    /// What another part ran.
    pub fn add(&mut self, other: Runs) {
        self.points += other.points;
        self.coverage.add(&other.coverage);
        for (invariant, (count, first)) in other.broken {
            self.broken.entry(invariant).or_insert((0, first)).0 += count;
        }
    }

    pub fn covered(&self) -> Result<(), String> {
        let missing = self.coverage.missing();
        let all: Result<(), Violation> = if missing.is_empty() {
            Ok(())
        } else {
            broken("every cell that can occur is reached", missing.join("; "))
        };
        all.map_err(|violation| violation.detail)
    }
}
