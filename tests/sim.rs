//! The deterministic simulation: the machine with a storage that survives crashes, a virtual clock, a seeded world outside,
//! and a death at every point where one can happen.
//!
//! `SEEDS=n` runs n scripts by seed (200), `SEED=x` replays one with a line for each transaction, `TRACE=1` replays the
//! first scenario that fails.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::arithmetic_side_effects,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::string_slice,
    unreachable_pub
)]

#[path = "sim/cases.rs"]
mod cases;
#[path = "sim/coverage.rs"]
mod coverage;
#[path = "sim/faults.rs"]
mod faults;
#[path = "sim/invariants.rs"]
mod invariants;
#[path = "sim/manners.rs"]
mod manners;
#[path = "sim/model.rs"]
mod model;
#[path = "sim/script.rs"]
mod script;
#[path = "sim/tools.rs"]
mod tools;
#[path = "sim/world.rs"]
mod world;

use cases::Runs;

fn number_in(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn simulation_is_green() {
    let mut runs = Runs::default();
    if let Some(seed) = number_in("SEED") {
        let ran = runs.random_script(seed, true);
        assert_eq!(ran, Ok(()));
        return;
    }
    let begun = std::time::Instant::now();
    let seeds = number_in("SEEDS").unwrap_or(200);
    let parts = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    // Scenarios know nothing of each other, so each thread takes its part of them.
    let ran = std::thread::scope(|scope| {
        let part = |part| {
            move || {
                let mut runs = Runs::default();
                let ran = runs.everything(seeds, part, parts);
                (runs, ran)
            }
        };
        let threads: Vec<_> = (0..parts).map(|n| scope.spawn(part(n))).collect();
        let mut all = Ok(());
        for thread in threads {
            let (part, ran) = thread.join().unwrap();
            runs.add(part);
            all = all.and(ran);
        }
        all
    });
    for (count, first) in runs.broken.values() {
        println!("broken {count} times, first: {first}\n");
    }
    println!("{}", runs.coverage);
    println!("{} points in {:.1} s", runs.points, begun.elapsed().as_secs_f64());
    assert!(ran.is_ok(), "{}", ran.unwrap_err());
    let covered = runs.covered();
    assert!(covered.is_ok(), "not reached: {}", covered.unwrap_err());
}

/// Each deliberate fault of the machine must be seen. They exist only under `--cfg agentdo_sabotage`.
#[cfg(agentdo_sabotage)]
#[test]
fn sabotage_turns_the_simulation_red() {
    use agentdo::sabotage::{Fault, set};
    let mut unseen = Vec::new();
    for fault in Fault::ALL {
        set(Some(fault));
        let mut runs = Runs::default();
        let ran = runs.everything(number_in("SEEDS").unwrap_or(200), 0, 1);
        set(None);
        match ran {
            Err(seen) => println!("{fault:?}: seen at point {} by {seen}\n", runs.points),
            Ok(()) if runs.broken.is_empty() => unseen.push(fault),
            // `KEEP_GOING=1`: every invariant that sees it.
            Ok(()) => {
                let seen: Vec<_> = runs.broken.iter().map(|(name, (count, _))| format!("{name} ({count})")).collect();
                println!("{fault:?}: {}\n", seen.join("; "));
            }
        }
    }
    assert!(unseen.is_empty(), "green under {unseen:?}");
}
