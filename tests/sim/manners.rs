//! How the world outside behaves in one scenario: what each hook, gate, credential read, request and tool does, by the
//! number of times it was asked. Beyond the lists all is well.

use agentdo::model::FailureKind;
use agentdo::platform::host::SeededRandom;

/// What a model does with one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Manner {
    /// Streams its answer.
    Well,
    /// The same, so many times slower.
    Slow(i64),
    /// The finish mark comes long before the usage and the end.
    UsageLate,
    /// Fails before the first byte.
    Refuse { kind: FailureKind, retry_after_ms: Option<u64> },
    /// Is cut after a piece.
    Cut,
    /// Says nothing.
    Empty,
    /// Is cut by the output limit, when it asks for tools.
    Length,
}

/// What one dispatch of the hooks does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HookManner {
    /// Returns after so many ms; after 5 s it counts as pending.
    After(i64),
    /// A handler failed; the others returned.
    Fails,
    /// Blocks the tool call.
    Blocks,
    /// Changes the input.
    Changes,
}

/// What a gate says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GateManner {
    Go,
    WaitMs(i64),
    No,
}

/// What an operation does when its signal is aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Ends soon.
    Obeys,
    /// Never says a word again.
    Silent,
    /// Goes on as if nothing had been said: its answers come late.
    Ignores,
}

/// How the world behaves.
#[derive(Debug, Clone)]
pub struct Manners {
    pub handles_before_agent_request: bool,
    pub handles_tool_call: bool,
    pub gates: Vec<&'static str>,
    pub hooks: Vec<HookManner>,
    pub tool_hooks: Vec<HookManner>,
    pub gate_answers: Vec<GateManner>,
    pub credentials_ms: Vec<i64>,
    pub credentials_refused: Vec<usize>,
    pub model: Vec<Manner>,
    pub reach: Vec<Reach>,
}

impl Manners {
    /// Everybody is quick and obeys.
    pub fn plain() -> Self {
        Self {
            handles_before_agent_request: true,
            handles_tool_call: true,
            gates: vec!["slot", "budget"],
            hooks: Vec::new(),
            tool_hooks: Vec::new(),
            gate_answers: Vec::new(),
            credentials_ms: Vec::new(),
            credentials_refused: Vec::new(),
            model: Vec::new(),
            reach: Vec::new(),
        }
    }

    /// Nothing is registered.
    pub fn bare() -> Self {
        Self { handles_before_agent_request: false, handles_tool_call: false, gates: Vec::new(), ..Self::plain() }
    }

    /// All that may go wrong without a crash goes wrong once in two tool rounds: a hook holds, a gate waits, the model
    /// fails and comes back, the usage is late.
    pub fn rough() -> Self {
        use HookManner::{After, Changes, Fails};
        Self {
            hooks: vec![After(15), After(9_000), Fails, After(15), After(15)],
            tool_hooks: vec![After(8_000), Changes, After(25)],
            gate_answers: vec![GateManner::Go, GateManner::WaitMs(3_000), GateManner::Go],
            credentials_ms: vec![5, 900],
            model: vec![
                Manner::UsageLate,
                Manner::Refuse { kind: FailureKind::Transient, retry_after_ms: None },
                Manner::Cut,
                Manner::UsageLate,
                Manner::Well,
                Manner::Refuse { kind: FailureKind::RateLimited, retry_after_ms: Some(7_000) },
            ],
            reach: vec![Reach::Ignores],
            ..Self::plain()
        }
    }

    /// Anything, by the seed.
    pub fn random(random: &SeededRandom) -> Self {
        let list = |n: usize| 0..n;
        let hook = |tool: bool| match random.below(if tool { 12 } else { 9 }) {
            0 => HookManner::Fails,
            1 => HookManner::After(6_000 + below(random, 60_000)),
            2 => HookManner::After(4_999 + below(random, 3)),
            3 => HookManner::After(600_000 + below(random, 600_000)),
            9 => HookManner::Blocks,
            10 => HookManner::Changes,
            _ => HookManner::After(below(random, 60)),
        };
        let model = || match random.below(16) {
            0 => Manner::Refuse { kind: FailureKind::Transient, retry_after_ms: None },
            1 => Manner::Refuse { kind: FailureKind::RateLimited, retry_after_ms: Some(9_000) },
            2 => Manner::Refuse { kind: FailureKind::RateLimited, retry_after_ms: Some(900_000) },
            3 => Manner::Cut,
            4 => Manner::Empty,
            5 => Manner::Length,
            6 => Manner::UsageLate,
            7 => Manner::Refuse { kind: FailureKind::ContentFilter, retry_after_ms: None },
            8 => Manner::Slow(40),
            9 => Manner::Refuse { kind: FailureKind::MalformedCall, retry_after_ms: None },
            _ => Manner::Well,
        };
        let gate = || match random.below(12) {
            0 => GateManner::No,
            1 => GateManner::WaitMs(below(random, 50_000)),
            2 => GateManner::WaitMs(0),
            _ => GateManner::Go,
        };
        let reach = || match random.below(3) {
            0 => Reach::Obeys,
            1 => Reach::Silent,
            _ => Reach::Ignores,
        };
        Self {
            handles_before_agent_request: random.below(4) > 0,
            handles_tool_call: random.below(2) > 0,
            gates: [vec![], vec!["slot"], vec!["slot", "budget"]].into_iter().nth(random.below(3)).unwrap_or_default(),
            hooks: list(8).map(|_| hook(false)).collect(),
            tool_hooks: list(8).map(|_| hook(true)).collect(),
            gate_answers: list(12).map(|_| gate()).collect(),
            credentials_ms: list(6).map(|_| below(random, 3_000)).collect(),
            credentials_refused: if random.below(6) == 0 { vec![random.below(4)] } else { Vec::new() },
            model: list(10).map(|_| model()).collect(),
            reach: list(8).map(|_| reach()).collect(),
        }
    }
}

/// A number below `bound`, as ms.
pub fn below(random: &SeededRandom, bound: i64) -> i64 {
    i64::try_from(random.below(usize::try_from(bound).unwrap_or(0))).unwrap_or(0)
}
