//! Functions that the standard library of Rust has not, good to 1e-10 and more, and the softmax of rows.

/// The error function by its power series, good to 1e-10 for |x| < 4.
pub fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

/// Logarithm of the gamma function of a positive number: Stirling's series, moved up.
pub fn lgamma(mut x: f64) -> f64 {
    let mut shift = 0.0;
    while x < 12.0 {
        shift -= x.ln();
        x += 1.0;
    }
    shift + (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + 1.0 / (12.0 * x)
        - 1.0 / (360.0 * x.powi(3))
        + 1.0 / (1260.0 * x.powi(5))
}

/// The inverse of the error function, for |y| < 0.9.
pub fn erfinv(y: f64) -> f64 {
    let slope = 2.0 / std::f64::consts::PI.sqrt();
    (0..30).fold(y, |x, _| x - (erf(x) - y) / (slope * (-x * x).exp()))
}

/// The Bessel function of the first kind and order zero, for |x| < 6.
pub fn j0(x: f64) -> f64 {
    let (mut term, mut sum) = (1.0, 1.0);
    for n in 1..60 {
        term *= -x * x / 4.0 / f64::from(n * n);
        sum += term;
    }
    sum
}

/// Remainder of `x` by the nearest multiple of `y`.
pub fn remainder(x: f64, y: f64) -> f64 {
    x - y * (x / y).round_ties_even()
}

/// The softmax of each row of `n` numbers.
pub fn softmax(x: &[f64], n: usize) -> Vec<f64> {
    x.chunks(n)
        .flat_map(|row| {
            let top = row.iter().copied().fold(f64::MIN, f64::max);
            let total: f64 = row.iter().map(|v| (v - top).exp()).sum();
            row.iter().map(move |v| (v - top).exp() / total)
        })
        .collect()
}
