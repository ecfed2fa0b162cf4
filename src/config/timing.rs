//! Deadlines, intervals and the counts that go with them: each has a variable, so that a test need not wait.

use super::{ConfigError, Vars, integer};

/// The longest that any of them may be set to.
const DAY_MS: u64 = 86_400_000;

macro_rules! timings {
    ($($field:ident $variable:literal $default:literal $min:literal $max:expr, $doc:literal;)*) => {
        /// Deadlines, intervals and counts, each with its unit in the name.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Timing {
            $(#[doc = concat!("`", $variable, "`, default ", stringify!($default), ": ", $doc)] pub $field: u64,)*
        }

        impl Timing {
            /// The variables with their defaults, in order.
            pub const VARIABLES: &[(&'static str, u64)] = &[$(($variable, $default),)*];

            pub(super) fn from_vars(vars: &Vars<'_>) -> Result<Self, ConfigError> {
                Ok(Self { $($field: integer(vars, $variable, $min, $max)?.unwrap_or($default),)* })
            }
        }

        impl Default for Timing {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
}

timings! {
    liveness_interval_ms "LIVENESS_INTERVAL_MS" 60_000 1 DAY_MS, "wall time between two checks of an active run (L2)";
    liveness_checks_max "LIVENESS_CHECKS_MAX" 15 1 100_000, "the check at which a run is aborted with `timeout` (L2)";
    alarm_ahead_ms "ALARM_AHEAD_MS" 30_000 1 DAY_MS, "how far ahead the alarm stands at most while work is in flight (L1)";
    stop_grace_ms "STOP_GRACE_MS" 5_000 1 DAY_MS, "how long a hook or tool that ignores its signal is waited for (X1, T5)";
    hook_pending_ms "HOOK_PENDING_MS" 5_000 1 DAY_MS, "after this a hook that has not answered counts as holding (machine.md)";
    hook_timeout_ms "HOOK_TIMEOUT_MS" 10_000 1 DAY_MS, "deadline of a hook handler but `before_agent_request` (hooks.md 10)";
    compact_hook_timeout_ms "COMPACT_HOOK_TIMEOUT_MS" 120_000 1 DAY_MS, "deadline of `session_before_compact` (hooks.md 10)";
    first_byte_timeout_ms "FIRST_BYTE_TIMEOUT_MS" 60_000 1 DAY_MS, "first byte or comment of a model call (R7)";
    silence_timeout_ms "SILENCE_TIMEOUT_MS" 180_000 1 DAY_MS, "first event, and silence between events, of a model call (R7)";
    call_timeout_ms "CALL_TIMEOUT_MS" 600_000 1 DAY_MS, "a model call as a whole (R7)";
    stream_batch_ms "STREAM_BATCH_MS" 500 1 DAY_MS, "streamed text is stored at least this often (R3)";
    stream_batch_bytes "STREAM_BATCH_BYTES" 8_192 1 1_048_576, "streamed text is stored once there is this much (R3)";
    tool_timeout_ms "TOOL_TIMEOUT_MS" 60_000 1 DAY_MS, "a tool that does not say otherwise (T5)";
    retry_base_ms "RETRY_BASE_MS" 1_000 1 DAY_MS, "first step of the exponential backoff (R6)";
    retry_max_ms "RETRY_MAX_MS" 60_000 1 DAY_MS, "largest step of the exponential backoff (R6)";
    retry_count_max "RETRY_COUNT_MAX" 3 0 100, "retries of a transient or rate-limited call (R6)";
    retry_wait_max_ms "RETRY_WAIT_MAX_MS" 120_000 1 DAY_MS, "a wait longer than this is a quota matter, not a retry (R6)";
    retry_task_delay_ms "RETRY_TASK_DELAY_MS" 5_000 0 DAY_MS, "from the end of an attempt to `retryTask` (section 7)";
    agent_call_timeout_ms "AGENT_CALL_TIMEOUT_MS" 10_000 1 DAY_MS, "the Worker waits this long for an object (section 9)";
    keep_alive_ms "KEEP_ALIVE_MS" 15_000 1 DAY_MS, "a comment is sent on an event stream that is silent this long";
    claim_lease_ms "CLAIM_LEASE_MS" 180_000 1 DAY_MS, "lease of a claim, renewed by the liveness check (shapes.md)";
    slot_lease_ms "SLOT_LEASE_MS" 180_000 1 DAY_MS, "lease of a working-agent slot, renewed by the liveness check (section 8)";
    slot_confirm_ms "SLOT_CONFIRM_MS" 30_000 1 DAY_MS, "a granted slot that is not confirmed goes to the next (section 8)";
}
