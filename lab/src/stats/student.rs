//! Student's t distribution, for samples that are too small for the normal one.

use statrs::distribution::{ContinuousCDF, StudentsT};
use statrs::function::beta::checked_beta_reg;

/// Returns the probability that `|T|` with `df` degrees of freedom (not necessarily whole) is at least `|t|`: the
/// two-sided p-value.
///
/// Abramowitz and Stegun, Handbook of Mathematical Functions, 26.5.27 and 26.7.1. The complement of [`StudentsT::cdf`] would
/// lose the small values that multiple comparisons need.
pub fn two_sided_p(t: f64, df: f64) -> f64 {
    if t.is_nan() || df.is_nan() || df <= 0.0 {
        return 1.0;
    }
    checked_beta_reg(df / 2.0, 0.5, df / (df + t * t)).unwrap_or(1.0)
}

/// Returns the point below which Student's distribution with `df` degrees of freedom has the share `p`:
/// `t_quantile(0.975, df)` is the factor of a two-sided 95 % interval. NaN for `p` outside of 0 to 1 or `df` not above
/// 0. Good to five digits for up to ten thousand degrees of freedom; the lab has some hundred at most.
pub fn t_quantile(p: f64, df: f64) -> f64 {
    match StudentsT::new(0.0, 1.0, df) {
        Ok(distribution) if p > 0.0 && p < 1.0 => distribution.inverse_cdf(p),
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are printed in every table of Student's distribution.
    #[test]
    fn quantiles_as_in_the_tables() {
        let table = [
            (0.975, 1.0, 12.706),
            (0.975, 2.0, 4.303),
            (0.975, 4.0, 2.776),
            (0.975, 8.0, 2.306),
            (0.975, 30.0, 2.042),
            (0.975, 120.0, 1.980),
            (0.95, 5.0, 2.015),
            (0.995, 9.0, 3.250),
            (0.9995, 4.0, 8.610),
            (0.8, 8.0, 0.889),
            (0.8, 4.0, 0.941),
            (0.8, 1.0, 1.376),
        ];
        for (p, df, t) in table {
            let got = t_quantile(p, df);
            assert!((got - t).abs() < 6e-4, "t({p}, {df}) is {t}, not {got}");
            assert!((t_quantile(1.0 - p, df) + got).abs() < 1e-9, "it is symmetric");
        }
        assert!(t_quantile(0.5, 7.0).abs() < 1e-9);
        // For many degrees of freedom it approaches the normal distribution, whose quantile is 1.95996.
        let many = t_quantile(0.975, 1e4);
        assert!((many - 1.960_201).abs() < 1e-5, "{many}");
        assert!(t_quantile(1.0, 3.0).is_nan());
    }

    /// One degree of freedom is Cauchy's distribution, `1/2 + atan(t)/pi`; two have `1/2 + t / (2 sqrt(2 + t^2))`.
    #[test]
    fn p_values_where_there_is_a_formula() {
        for t in [0.0_f64, 0.3, 1.0, 4.0, 100.0, 1e4] {
            let cauchy = 1.0 - 2.0 * t.atan() / std::f64::consts::PI;
            assert!((two_sided_p(t, 1.0) - cauchy).abs() < 1e-12, "{t}");
            let two = 1.0 - t / (2.0 + t * t).sqrt();
            assert!((two_sided_p(-t, 2.0) - two).abs() < 1e-12, "{t}");
        }
        assert!(two_sided_p(f64::INFINITY, 4.0) < 1e-300);
    }
}
