//! Averages, quantiles, Jain's index.

/// Returns the figures in ascending order.
pub fn sorted(figures: &[f64]) -> Vec<f64> {
    let mut figures = figures.to_vec();
    figures.sort_by(f64::total_cmp);
    figures
}

/// Returns the median; with an even count the mean of the two in the middle. `None` if there are no figures.
pub fn median(figures: &[f64]) -> Option<f64> {
    quantile(figures, 0.5)
}

/// Returns the quantile at `share` (0 to 1), interpolated linearly between the neighbouring order statistics. This is
/// definition 7 of Hyndman and Fan (The American Statistician 50, 1996), which is also the default of R and NumPy.
/// `None` if there are no figures.
pub fn quantile(figures: &[f64], share: f64) -> Option<f64> {
    let figures = sorted(figures);
    let place = share.clamp(0.0, 1.0) * (figures.len().checked_sub(1)? as f64);
    let below = figures.get(place.floor() as usize)?;
    let above = figures.get(place.ceil() as usize)?;
    Some(below + (above - below) * place.fract())
}

/// Returns the arithmetic mean. `None` if there are no figures.
pub fn mean(figures: &[f64]) -> Option<f64> {
    (!figures.is_empty()).then(|| figures.iter().sum::<f64>() / figures.len() as f64)
}

/// Returns the sample variance, with `n - 1` in the denominator. `None` for fewer than two figures.
pub fn variance(figures: &[f64]) -> Option<f64> {
    let mean = mean(figures)?;
    let squares: f64 = figures.iter().map(|x| (x - mean).powi(2)).sum();
    (figures.len() >= 2).then(|| squares / (figures.len() - 1) as f64)
}

/// Returns the sample standard deviation, with `n - 1` in the denominator. `None` for fewer than two figures.
pub fn sd(figures: &[f64]) -> Option<f64> {
    variance(figures).map(f64::sqrt)
}

/// Returns the natural logarithms; `None` if a figure is not positive or not finite, because a ratio to it is meaningless.
pub fn logs(figures: &[f64]) -> Option<Vec<f64>> {
    figures.iter().map(|x| (*x > 0.0 && x.is_finite()).then(|| x.ln())).collect()
}

/// Returns the geometric mean. `None` if there are no figures, or if one is not positive.
pub fn geometric_mean(figures: &[f64]) -> Option<f64> {
    mean(&logs(figures)?).map(f64::exp)
}

/// Returns Jain's index of fairness (Jain, Chiu, Hawe: DEC-TR-301, 1984): 1 when all flows get the same, `1/n` when one
/// gets everything. It is 1 if there are no flows, and 0 if no flow gets anything.
pub fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|x| x * x).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: Option<f64>, b: f64) {
        assert!((a.unwrap_or(f64::NAN) - b).abs() < 1e-9, "{a:?} is not {b}");
    }

    #[test]
    fn the_median_of_odd_and_even_counts() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    /// R: `quantile(c(15, 20, 35, 40, 50), c(.05, .3, .4, 1))` is 16, 23, 29, 50: places 0.2, 1.2, 1.6 and 4 of the order statistics.
    #[test]
    fn quantiles_by_definition_seven() {
        let figures = [50.0, 15.0, 40.0, 20.0, 35.0];
        near(quantile(&figures, 0.05), 16.0);
        near(quantile(&figures, 0.3), 23.0);
        near(quantile(&figures, 0.4), 29.0);
        near(quantile(&figures, 1.0), 50.0);
        assert_eq!(quantile(&[], 0.5), None);
    }

    /// 2 4 4 4 5 5 7 9: the mean is 5 and the squares sum to 32, so the sample's variance is 32/7.
    #[test]
    fn mean_and_deviation() {
        let figures = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        near(mean(&figures), 5.0);
        near(variance(&figures), 32.0 / 7.0);
        near(sd(&figures), (32.0_f64 / 7.0).sqrt());
        assert_eq!(sd(&[1.0]), None);
        assert_eq!(mean(&[]), None);
    }

    #[test]
    fn the_geometric_mean_of_two_and_eight_is_four() {
        near(geometric_mean(&[2.0, 8.0]), 4.0);
        assert_eq!(geometric_mean(&[2.0, 0.0]), None);
    }

    /// One of four gets everything: 1/4. 1, 2 and 3: 36 / (3 * 14).
    #[test]
    fn jains_index() {
        near(Some(jain(&[5.0, 0.0, 0.0, 0.0])), 0.25);
        near(Some(jain(&[7.0, 7.0, 7.0])), 1.0);
        near(Some(jain(&[1.0, 2.0, 3.0])), 36.0 / 42.0);
        near(Some(jain(&[])), 1.0);
        near(Some(jain(&[0.0, 0.0])), 1.0);
    }
}
