//! Times at some amounts of work, and what they say of others.

/// Seconds that amounts of work take, by amount.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve(Vec<(f64, f64)>);

impl Curve {
    /// The points that are positive numbers, by amount. Of one amount the least time counts.
    pub fn new(points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let usable =
            |(work, time): &(f64, f64)| work.is_finite() && time.is_finite() && *work > 0.0 && *time > 0.0;
        let mut points: Vec<(f64, f64)> = points.into_iter().filter(usable).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        points.dedup_by(|later, kept| later.0 == kept.0);
        Curve(points)
    }

    /// The points, by amount.
    pub fn points(&self) -> &[(f64, f64)] {
        &self.0
    }

    /// Seconds for an amount of work: between points along a straight line of their logarithms, beyond them at the rate of
    /// the nearest. `None` without points.
    pub fn time(&self, work: f64) -> Option<f64> {
        let (first, last) = (self.0.first()?, self.0.last()?);
        if work <= 0.0 {
            return Some(0.0);
        }
        if work <= first.0 {
            return Some(first.1 * work / first.0);
        }
        if work >= last.0 {
            return Some(last.1 * work / last.0);
        }
        let after = self.0.partition_point(|(amount, _)| *amount <= work);
        let (a, b) = (self.0.get(after.checked_sub(1)?)?, self.0.get(after)?);
        let share = (work / a.0).ln() / (b.0 / a.0).ln();
        Some((a.1.ln() + share * (b.1 / a.1).ln()).exp())
    }

    /// The best rate of all points, in work per second.
    pub fn rate(&self) -> Option<f64> {
        self.0.iter().map(|(work, time)| work / time).max_by(f64::total_cmp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_met_and_between_them_times_are_between() {
        let curve = Curve::new([(100.0, 4.0), (1.0, 1.0), (f64::NAN, 1.0), (5.0, -1.0), (100.0, 5.0)]);
        assert_eq!(curve.points(), [(1.0, 1.0), (100.0, 4.0)]);
        assert_eq!(curve.time(1.0), Some(1.0));
        assert_eq!(curve.time(100.0), Some(4.0));
        let between = curve.time(10.0).unwrap_or_default();
        assert!((between - 2.0).abs() < 1e-9, "{between}");
    }

    #[test]
    fn beyond_the_points_the_rate_of_the_nearest_holds() {
        let curve = Curve::new([(10.0, 1.0), (100.0, 4.0)]);
        assert_eq!(curve.time(5.0), Some(0.5));
        assert_eq!(curve.time(1000.0), Some(40.0));
        assert_eq!(curve.time(0.0), Some(0.0));
        assert_eq!(curve.rate(), Some(25.0));
        assert_eq!(Curve::default().time(1.0), None);
        assert_eq!(Curve::default().rate(), None);
    }
}
