//! Student's t distribution, for samples that are too small for the normal one.

/// The probability that `|T|` with `df` degrees of freedom (not necessarily whole) is at least `|t|`: the two-sided p-value.
///
/// Abramowitz and Stegun, Handbook of Mathematical Functions, 26.5.27 and 26.7.1.
#[must_use]
pub fn two_sided_p(t: f64, df: f64) -> f64 {
    if t.is_nan() || df.is_nan() || df <= 0.0 {
        return 1.0;
    }
    if t.is_infinite() {
        return 0.0;
    }
    incomplete_beta(df / (df + t * t), df / 2.0, 0.5)
}

/// The point below which lies the share `p` of Student's distribution with `df` degrees of freedom: `quantile(0.975, df)` is what a
/// two-sided 95 % interval takes. NaN for `p` outside of 0 to 1 or `df` not above 0.
#[must_use]
pub fn t_quantile(p: f64, df: f64) -> f64 {
    if !(p > 0.0 && p < 1.0 && df > 0.0) {
        return f64::NAN;
    }
    if p < 0.5 {
        return -t_quantile(1.0 - p, df);
    }
    let tail = 1.0 - p;
    let excess = |t: f64| two_sided_p(t, df) / 2.0 - tail;
    let mut high = 1.0;
    while excess(high) > 0.0 && high < 1e300 {
        high *= 2.0;
    }
    let (mut low, mut t) = (0.0, f64::midpoint(0.0, high));
    // Newton's steps where they stay inside the bracket, halves of it where they do not.
    for _ in 0..200 {
        let off = excess(t);
        if off > 0.0 {
            low = t
        } else {
            high = t
        }
        let newton = t + off / density(t, df);
        let inside = newton > low && newton < high;
        let next = if inside { newton } else { f64::midpoint(low, high) };
        if (next - t).abs() <= 1e-13 * t {
            return next;
        }
        t = next;
    }
    t
}

/// The density of Student's distribution.
fn density(t: f64, df: f64) -> f64 {
    let scale = ln_gamma(f64::midpoint(df, 1.0)) - ln_gamma(df / 2.0);
    let shape = f64::midpoint(df, 1.0) * (t * t / df).ln_1p();
    (scale - shape).exp() / (df * std::f64::consts::PI).sqrt()
}

/// The regularised incomplete beta function, by the continued fraction of Abramowitz and Stegun 26.5.8, evaluated by Lentz's method.
fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    // The fraction converges quickly only on this side of the mean.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(1.0 - x, b, a);
    }
    let front = ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln();
    let away_from_zero = |v: f64| if v.abs() < 1e-300 { 1e-300 } else { v };
    let mut c = 1.0;
    let mut d = 1.0 / away_from_zero(1.0 - (a + b) * x / (a + 1.0));
    let mut fraction = d;
    for m in 1..500 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let before = fraction;
        for numerator in [even, odd] {
            d = 1.0 / away_from_zero(1.0 + numerator * d);
            c = away_from_zero(1.0 + numerator / c);
            fraction *= c * d;
        }
        if (fraction - before).abs() < 1e-15 * fraction.abs() {
            break;
        }
    }
    (front.exp() * fraction / a).clamp(0.0, 1.0)
}

/// The logarithm of the gamma function for `x > 0`, by Lanczos' approximation with g = 7 and nine terms: about 15 digits.
fn ln_gamma(x: f64) -> f64 {
    const TERMS: [f64; 8] = [
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    if x < 0.5 {
        let pi = std::f64::consts::PI;
        return (pi / (pi * x).sin()).ln() - ln_gamma(1.0 - x);
    }
    let x = x - 1.0;
    let mut sum = 0.999_999_999_999_809_9;
    let mut place = x;
    for term in TERMS {
        place += 1.0;
        sum += term / place;
    }
    let base = x + 7.5;
    0.5 * (2.0 * std::f64::consts::PI).ln() + (x + 0.5) * base.ln() - base + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As printed in every table of Student's distribution.
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
        // Towards the normal distribution: 1.95996.
        assert!((t_quantile(0.975, 1e6) - 1.959_96).abs() < 1e-5);
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

    #[test]
    fn gamma_of_whole_numbers_is_a_factorial() {
        for (x, factorial) in [(1.0, 1.0_f64), (5.0, 24.0), (11.0, 3_628_800.0)] {
            assert!((ln_gamma(x) - factorial.ln()).abs() < 1e-12);
        }
        assert!((ln_gamma(0.5) - std::f64::consts::PI.sqrt().ln()).abs() < 1e-12);
    }
}
