//! Statistics, all pure and with known answers, and [`summarise`], from which tables and plots are drawn.
//!
//! # The rules
//! - A trial counts if it was measured and nothing made it invalid. If the hypervisor took more than 1 % of the
//!   machine's time ([`STEAL_LIMIT`]) it is *marked*, and left out as long as three ([`ENOUGH`]) unmarked ones remain.
//!   A result of fewer than three unmarked rounds is *invalid*: shown with the reason, never compared. (Instruction
//!   counts need only one round, because they repeat exactly.)
//! - A figure is the median over the rounds that count, with a 95 % interval (see [`interval_of_median`]).
//! - A *ratio* is that of a subject to the reference in the same round, so a minute-long slowdown of the machine affects both. The
//!   reference is `openvpn` if the scenario has it, otherwise the first subject in the order of [`crate::subject::Subject`].
//! - The *smallest detectable difference* (SDD) of a row is the difference that a second run of as many rounds must
//!   have for a two-sided test at 5 % to find it in 80 % of all cases, computed from the spread `s` of the logarithms
//!   of the rounds' figures: `(t(0.975) + t(0.8)) * s * sqrt(2/n)` with `2(n - 1)` degrees of freedom (see
//!   [`smallest_detectable`]). With five rounds it is about `2 s`, that is, 4 % if the rounds scatter by 2 %. A/A (the
//!   same subject twice in each round) has its own `s` per metric, pooled over both sides; the row's SDD is the larger
//!   of the two.
//! - *Ahead* or *behind* the reference requires that the interval of the ratio excludes 1 **and** that the difference is larger than the
//!   row's SDD. Any other result is *inside the noise*.
//! - A/A is judged by the same rule. If A differs from A, the run warns that the machine is not steady.
//! - Growth is fitted twice by least squares: figure against clients (what one more client costs), and logarithm against logarithm, whose
//!   slope is the exponent. *Above linear* means that the whole 95 % interval of the exponent is above 1.

mod basic;
mod fit;
mod interval;
mod student;
mod summarise;
mod summary;

pub use basic::{geometric_mean, jain, logs, mean, median, quantile, sd, sorted, variance};
pub use fit::{Slope, line, log_log};
pub use interval::{
    Interval, RESAMPLES, bootstrap_median, interval_of_median, percent, smallest_detectable,
    student,
};
pub use student::{t_quantile, two_sided_p};
pub use summarise::{ENOUGH, STEAL_LIMIT, by_point, summarise};
pub use summary::{AaCell, AaRow, Cell, Growth, Ratio, Row, Summary, Verdict};
