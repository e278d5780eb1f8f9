//! Tests of L2 and DRAM.

use super::*;

fn memory() -> Memory {
    Memory::new(&Chip::named("b200").unwrap())
}

const FIRST: Place = Place { half: 0, gpc: 0 };

/// An SM beside either half of L2, by a line's hash: half of the lines come from the other one.
fn either(line: u64) -> Place {
    Place { half: (hash(line) & 1) as usize, gpc: 0 }
}

/// Whether L2 serves a read of its own for an SM of this GPC, and when the read's bytes leave.
fn served(m: &mut Memory, line: u64, now: f64, gpc: usize, bytes: f64) -> (bool, f64) {
    let before = m.traffic.l2_bytes;
    let read = m.read(line, bytes, now, Place { half: 0, gpc }, false);
    (m.traffic.l2_bytes > before, read.at)
}

#[test]
fn sms_of_a_gpc_are_served_once_while_the_first_of_them_waits() {
    let mut m = memory();
    m.warm(0, 1024 * LINE);
    let lines: Vec<u64> = (0..1024).filter(|&line| hash(line) & 1 == 0).collect();
    let (&line, others) = lines.split_last().unwrap();
    // L2 is idle, and the first request waits for nothing.
    assert!(served(&mut m, line, 1e4, 0, 128.0).0 && served(&mut m, line, 1e4 + 40.0, 0, 128.0).0);
    for line in others {
        m.read(*line, 128.0, 2e4, FIRST, false);
    }
    let (first, at) = served(&mut m, line, 2e4, 0, 128.0);
    let (second, joined) = served(&mut m, line, 2e4 + 1.0, 0, 128.0);
    assert!(first && !second && joined >= at, "{at} {joined}");
    // Another GPC, a part of the line, and a request that is too late.
    assert!(served(&mut m, line, 2e4 + 1.0, 1, 128.0).0);
    assert!(served(&mut m, line, 2e4 + 1.0, 0, 64.0).0);
    assert!(served(&mut m, line, 2e4 + 2000.0, 0, 128.0).0);
}

#[test]
fn a_second_read_hits_and_one_under_way_is_shared() {
    let mut m = memory();
    let place = either(5);
    let first = m.read(5, 128.0, 0.0, place, false);
    assert_eq!(first.source, Source::Dram);
    let merged = m.read(5, 128.0, 1.0, place, false);
    assert_eq!(merged.source, Source::Shared);
    assert!((merged.at - first.at).abs() < 32.0);
    let hit = m.read(5, 128.0, 1e5, place, false);
    assert_eq!(hit.source, Source::L2);
    assert!(hit.at < 1e5 + m.latency + 32.0);
    assert!(first.at - 0.0 > hit.at - 1e5 + m.dram - 32.0);
}

#[test]
fn lines_of_the_other_half_and_of_banks_that_are_refreshed_take_longer() {
    let chip = Chip::named("h200").unwrap();
    let mut m = Memory::new(&chip);
    let (far, refresh) = (chip.dram_far.value, chip.dram_refresh.value);
    // Each in a run of its own, and after the one before.
    let lines = 4000u64;
    let took: Vec<f64> = (0..lines)
        .map(|l| {
            let now = l as f64 * 1777.0;
            let line = l * m.interleave;
            m.read(line, 128.0, now, either(line), false).at - now
        })
        .collect();
    let least = took.iter().copied().fold(f64::MAX, f64::min);
    let share = |from: f64, to: f64| {
        took.iter().filter(|&&t| t - least >= from && t - least < to).count() as f64 / lines as f64
    };
    assert!((0.43..0.5).contains(&share(0.0, 1.0)), "near: {}", share(0.0, 1.0));
    assert!((0.43..0.5).contains(&share(far - 1.0, far + 1.0)), "far: {}", share(far - 1.0, far + 1.0));
    let waits = 1.0 - share(0.0, 1.0) - share(far - 1.0, far + 1.0);
    let expected = refresh / chip.dram_refresh_interval.value;
    assert!((waits / expected - 1.0).abs() < 0.2, "{waits} wait for a refresh, {expected} expected");
    assert!(share(far + refresh + 1.0, f64::MAX) == 0.0);
}

#[test]
fn bytes_beyond_the_rate_queue() {
    let mut m = memory();
    let n = 10_000u64;
    let rate = 7270.0 * 1000.0 / 1965.0;
    let last = (0..n).map(|l| m.read(l, 128.0, 0.0, either(l), false).at).fold(0.0, f64::max);
    let bound = (n * LINE) as f64 / rate;
    // The channel with the most of 2,500 runs of lines has twice its share of them. Lines cross while others come from DRAM.
    assert!(last > bound && last < bound * 2.2 + m.dram + m.latency + m.far + 100.0, "{last} {bound}");
}

#[test]
fn runs_of_lines_share_a_channel_and_all_channels_have_their_part() {
    let m = memory();
    let run = m.interleave;
    let mut lines = vec![0u64; m.channels.len()];
    for line in 0..run * 64 * lines.len() as u64 {
        lines[m.channel(line / m.interleave)] += 1;
    }
    assert!(lines.iter().all(|n| n % run == 0), "{lines:?}");
    assert!(lines.iter().all(|n| (32 * run..112 * run).contains(n)), "{lines:?}");
}

#[test]
fn of_two_pages_each_half_has_one() {
    let m = halves();
    let homes: Vec<usize> = (0..1024).map(|page| m.home(page * PAGE)).collect();
    for (page, home) in homes.iter().enumerate() {
        assert!((0..PAGE).all(|line| m.home(page as u64 * PAGE + line) == *home));
    }
    let firsts = homes.chunks(2).filter(|pair| pair[0] == 0).count();
    assert!(homes.chunks(2).all(|pair| pair[0] != pair[1]) && (200..312).contains(&firsts), "{firsts}");
}

#[test]
fn what_does_not_fit_is_read_again() {
    let mut m = memory();
    let lines = 4 * m.sets.len() as u64 * WAYS as u64;
    for l in 0..lines {
        m.read(l, 128.0, l as f64, FIRST, false);
    }
    assert_eq!(m.read(0, 128.0, 1e9, FIRST, false).source, Source::Dram);
    assert_eq!(m.read(lines - 1, 128.0, 2e9, FIRST, false).source, Source::L2);
}

#[test]
fn written_lines_go_to_dram_when_others_take_their_places() {
    let mut m = memory();
    let lines = 2 * m.sets.len() as u64 * WAYS as u64;
    for l in 0..lines {
        m.write(l, 128.0, l as f64);
    }
    let back = m.traffic.written_back / LINE as f64;
    assert!((0.9..1.1).contains(&(back / (lines as f64 / 2.0))), "{back} of {lines}");
    // Reads take the places of the rest, which go back once.
    for l in lines..3 * lines {
        m.read(l, 128.0, l as f64, FIRST, false);
    }
    assert_eq!(m.traffic.written_back, (lines * LINE) as f64);
}

/// An H200's memory, whose halves of L2 keep copies of their own.
fn halves() -> Memory {
    Memory::new(&Chip::named("h200").unwrap())
}

const SECOND: Place = Place { half: 1, gpc: 7 };

/// How many of `lines` lines come from DRAM when SMs of these places read them one after the other, for the second time.
fn read_again(m: &mut Memory, lines: u64, places: &[Place], first: bool) -> f64 {
    let mut from_dram = 0;
    for round in 0..2u64 {
        for line in 0..lines {
            for &place in places {
                let now = 1e4 * (round * lines + line) as f64;
                let read = m.read(line, 128.0, now, place, first);
                from_dram += u64::from(round == 1 && read.source == Source::Dram);
            }
        }
    }
    from_dram as f64 / lines as f64
}

#[test]
fn lines_cross_from_the_half_that_they_belong_to() {
    let chip = Chip::named("h200").unwrap();
    let mut m = halves();
    let n = 20_000;
    for line in 0..n {
        m.read(line, 128.0, 1e3 * line as f64, FIRST, false);
    }
    let dram = m.traffic.dram_bytes;
    let foreign: Vec<u64> = (0..n).filter(|&line| m.home(line) == 0).collect();
    assert!((0.4..0.6).contains(&(foreign.len() as f64 / n as f64)));
    let (now, line) = (1e8, foreign[0]);
    let later = m.read(line, 128.0, now, SECOND, false);
    let again = m.read(line, 128.0, now + 1e4, SECOND, false);
    assert_eq!((later.source, again.source), (Source::L2, Source::L2));
    assert!((later.at - again.at + 1e4 - chip.l2_far.value).abs() < 1.0);
    // All others at once, at the rate of the link.
    let (now, crossed) = (2e8, m.traffic.crossed);
    let last =
        foreign[1..].iter().map(|&line| m.read(line, 128.0, now, SECOND, false).at).fold(0.0, f64::max);
    let rate = (m.traffic.crossed - crossed) / (last - later.at + 1e8 - now);
    assert!((0.95..1.01).contains(&(rate / chip.l2_cross_rate.value)), "{rate} bytes a clock");
    // What belongs to its own half is there.
    let crossed = m.traffic.crossed;
    for line in 0..n {
        assert_eq!(m.read(line, 128.0, 3e8, SECOND, false).source, Source::L2);
    }
    assert_eq!((m.traffic.crossed, m.traffic.dram_bytes), (crossed, dram));
}

#[test]
fn lines_that_both_halves_read_take_room_in_both() {
    let all = Chip::named("h200").unwrap().l2_bytes.value as u64 / LINE;
    // 27 and 40 MB of 63, as measured.
    let both = [FIRST, SECOND];
    assert!(read_again(&mut halves(), all * 43 / 100, &both, false) < 0.1);
    assert!(read_again(&mut halves(), all * 63 / 100, &both, false) > 0.9);
    // What one half reads is in the other one too where it belongs there.
    assert!(read_again(&mut halves(), all * 43 / 100, &[FIRST], false) < 0.1);
    let kept = read_again(&mut halves(), all * 63 / 100, &[FIRST], false);
    assert!((0.4..0.6).contains(&kept), "{kept}");
}

#[test]
fn lines_to_be_evicted_first_fill_an_eighth() {
    let all = Chip::named("h200").unwrap().l2_bytes.value as u64 / LINE;
    let read = read_again(&mut halves(), all / 50, &[FIRST, SECOND], true);
    assert!(read < 0.15, "{read}");
    let read = read_again(&mut halves(), all / 8, &[FIRST, SECOND], true);
    assert!(read > 0.8, "{read}");
    // They leave before others.
    let mut m = halves();
    for line in 0..all / 20 {
        m.read(line, 128.0, 1e3 * line as f64, FIRST, false);
    }
    for line in all..3 * all {
        m.read(line, 128.0, 1e3 * line as f64, FIRST, true);
    }
    let now = 1e4 * all as f64;
    let kept =
        (0..all / 20).filter(|&line| m.read(line, 128.0, now, FIRST, false).source == Source::L2).count();
    assert_eq!(kept as u64, all / 20);
}
