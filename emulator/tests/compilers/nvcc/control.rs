//! References of `control.cu`.

use super::run;
use crate::compilers::harness::{close, equal};
use crate::compilers::number::*;

#[test]
fn tables() {
    let (bytes, x) = Numbers(111).words(180, 0, 4000);
    let polynomial = [[1.0, 2.0, 3.0, 4.0, 5.0], [0.5, -1.0, 0.25, 2.0, -3.0], [7.0, 0.0, -7.0, 1.0, 0.125]];
    let lookup = |i: i32| if i < 9 { f64::from(9 - i) } else { 0.0 };
    let entries = [(1.0, 10.0, 100.0), (2.0, -20.0, -2f64.powi(40)), (3.0, 30.0, 7.0), (-4.0, -40.0, 12.0)];
    let primes = [2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0, 19.0];
    let of = |&v: &i32| {
        let y = f64::from(v & 15) * 0.25;
        let sum = polynomial[v as usize % 3].iter().fold(0.0, |s, c| s * y + c);
        let (kind, weight, bias) = entries[(v >> 2 & 3) as usize];
        let prime = primes[(if v & 1 == 0 { 4 } else { 0 } + (v & 3)) as usize];
        sum + f64::from(1 + (v & 1)) / 3.0 + lookup(v & 63) * 1000.0 + kind + weight + bias + prime
    };
    let want: Vec<f64> = x.iter().map(of).collect();
    run("tables", &[("x", &bytes)], |out| close(out, "out", F64, &want, 1e-14, 0.0));
}

#[test]
fn module_variables_start_anew() {
    let mut want = vec![0; 65];
    want[0] = 5;
    run("totals", &[], |out| equal(out, "out", &want));
}

/// Steps that z -> z^2 + c takes to leave the circle of radius 2; `None` where rounding may decide.
fn escape(re: f64, im: f64) -> Option<i32> {
    let (mut x, mut y) = (0.0, 0.0);
    for steps in 0..50 {
        let size: f64 = x * x + y * y;
        if (size - 4.0).abs() < 0.05 || steps > 20 && size > 0.5 {
            return None;
        }
        if size >= 4.0 {
            return Some(steps);
        }
        (x, y) = (x * x - y * y + re, 2.0 * x * y + im);
    }
    Some(50)
}

#[test]
fn calls() {
    let mut r = Numbers(112);
    let mut points = Vec::new();
    while points.len() < 240 {
        let (re, im) = (F32.round(r.real(-2.0, 0.7)), F32.round(r.real(-1.3, 1.3)));
        if escape(re, im).is_some() {
            points.extend([re, im]);
        }
    }
    let mut want = Vec::new();
    for (i, p) in points.chunks(2).enumerate() {
        let steps = escape(p[0], p[1]).unwrap();
        let (a, b) = (F32.round(p[0] * f64::from(1e12f32)) as i64, i64::from(steps % 5));
        want.push(f64::from(steps));
        want.extend(if b == 0 { [-7.0, -1.0] } else { [F32.round((a / b) as f64), (a % b) as f64] });
        let c = [p[0], p[1], 1.5, f64::from(steps)];
        want.push(F32.round(c[..3 + (i & 1)].iter().fold(0.0, |s, c| s * 0.5 + c)));
    }
    run("calls", &[("x", &F32.encode_all(&points))], |out| close(out, "out", F32, &want, 0.0, 0.0));
}

/// Interprets the byte code.
fn interpret(code: &[u8], x: i32) -> i32 {
    let (mut stack, mut pc) = (Vec::new(), 0);
    while pc < code.len() {
        let op = code[pc];
        pc += 1;
        match op {
            0 => stack.push(x),
            1 => {
                stack.push(i32::from(code[pc]));
                pc += 1;
            }
            2..=5 => {
                let (b, a) = (stack.pop().unwrap(), stack.pop().unwrap());
                stack.push(match op {
                    2 => a + b,
                    3 => a - b,
                    4 => a * b,
                    _ => a ^ b,
                });
            }
            6 => stack.push(*stack.last().unwrap()),
            7 => {
                let n = stack.len();
                stack.swap(n - 1, n - 2);
            }
            8 => {
                let v = stack.pop().unwrap();
                stack.push(-v);
            }
            9 => pc += if stack.pop().unwrap() < 0 { usize::from(code[pc]) } else { 1 },
            10 => {
                let v = stack.pop().unwrap();
                stack.push(v / 3);
            }
            _ => pc = code.len(),
        }
    }
    stack[0].wrapping_add((stack.len() as i32) << 28)
}

#[test]
fn interpreter() {
    let programs: [&[u8]; 4] = [
        &[0, 6, 4, 1, 200, 3, 10, 255],
        &[0, 1, 50, 3, 6, 9, 3, 8, 255, 1, 7, 2, 255],
        &[1, 9, 0, 7, 3, 6, 6, 4, 5, 1, 77, 2, 0, 255],
        &[0, 8, 6, 9, 2, 255, 0, 0, 0, 2, 2, 4, 1, 3, 7, 5],
    ];
    let mut code = vec![255u8; 96];
    for (k, p) in programs.iter().enumerate() {
        code[24 * k..24 * k + p.len()].copy_from_slice(p);
    }
    let (bytes, x) = Numbers(113).words(100, -90, 90);
    let want: Vec<i32> = (0..100).map(|i| interpret(&code[24 * (i & 3)..][..24], x[i])).collect();
    run("interpreter", &[("code", &code), ("x", &bytes)], |out| equal(out, "out", &want));
}

#[test]
fn local_sort() {
    let mut r = Numbers(114);
    let x: Vec<i16> = (0..24 * 128).map(|_| r.next() as i16).collect();
    let (mut want, mut moves) = (Vec::new(), Vec::new());
    for (t, row) in x.chunks(24).enumerate() {
        let count = 8 + t % 17;
        let inversions =
            (0..count).flat_map(|j| (0..j).map(move |i| (i, j))).filter(|&(i, j)| row[i] > row[j]);
        moves.push(inversions.count() as i32);
        let mut row = row.to_vec();
        row[..count].sort_unstable();
        row[count..].fill(-1);
        want.extend(row);
    }
    let bytes = |v: &[i16]| -> Vec<u8> { v.iter().flat_map(|v| v.to_le_bytes()).collect() };
    run("local_sort", &[("x", &bytes(&x))], |out| {
        assert!(out["out"] == bytes(&want), "not sorted");
        equal(out, "moves", &moves);
    });
}
