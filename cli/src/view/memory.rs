//! Maps of shared memory, of one stage, and of tensor memory.

use super::svg::{FILLS, FREE, Picture};
use super::title;
use silumin::codegen::plan::{Plan, Target};

const WIDTH: f64 = 960.0;
const LEFT: f64 = 8.0;
const BAR: f64 = 34.0;
const LINE: f64 = 18.0;

/// A part of a bar.
struct Part {
    name: String,
    offset: u32,
    size: u32,
    fill: &'static str,
}

/// A bar of `total` units with its parts, and a legend below. Returns where the next thing may start.
fn bar(
    picture: &mut Picture,
    y: f64,
    heading: &str,
    total: u32,
    parts: &[Part],
    legend: &[(&str, String)],
) -> f64 {
    picture.text(LEFT, y + 12.0, heading);
    let (top, scale) = (y + 20.0, (WIDTH - 2.0 * LEFT) / f64::from(total.max(1)));
    picture.block([LEFT, top, WIDTH - 2.0 * LEFT, BAR], FREE, "not used", "");
    for part in parts {
        let tip = format!("{}: {} .. {}", part.name, part.offset, part.offset + part.size);
        // What is too small to be seen is drawn two pixels wide.
        let width = (f64::from(part.size) * scale).max(2.0);
        let x = LEFT + f64::from(part.offset) * scale;
        picture.block([x, top, width, BAR], part.fill, &tip, &part.name);
    }
    let mut y = top + BAR + 8.0;
    for (fill, text) in legend {
        picture.block([LEFT, y, 12.0, 12.0], fill, text, "");
        picture.text(LEFT + 20.0, y + 11.0, text);
        y += LINE;
    }
    y + 14.0
}

/// The maps of a plan.
pub fn draw(plan: &Plan) -> String {
    let mut picture = Picture::new(WIDTH, &title(plan, "Memory"));
    maps(&mut picture, 32.0, plan);
    picture.finish()
}

/// The maps of a plan, from `y` on in a picture that is 960 wide.
pub fn maps(picture: &mut Picture, y: f64, plan: &Plan) {
    let smem = &plan.smem;
    let limit = plan.arch.limits().smem_bytes;
    let mut parts = Vec::new();
    let mut legend = Vec::new();
    for (index, region) in smem.regions.iter().enumerate() {
        let (name, fill) = (region.name.to_string(), FILLS[index % FILLS.len()]);
        let whole_stages = smem.stage_bytes > 0 && region.size == smem.stage_bytes * plan.stages;
        let count = if whole_stages { plan.stages } else { 1 };
        let size = region.size / count;
        for stage in 0..count {
            let name = if count > 1 { format!("stage {stage}") } else { name.clone() };
            parts.push(Part { name, offset: region.offset + stage * size, size, fill });
        }
        let end = region.offset + region.size;
        let stages = if count > 1 { format!(", {count} of {size} bytes") } else { String::new() };
        legend.push((fill, format!("{name}: bytes {} to {end}{stages}", region.offset)));
    }
    legend.push((FREE, format!("not used: {} bytes", limit.saturating_sub(smem.total))));
    let whose = if plan.cta_group.ctas() > 1 { "each CTA of the pair" } else { "a CTA" };
    let heading = format!("Shared memory of {whose}: {} of {limit} bytes", smem.total);
    let mut y = bar(picture, y, &heading, limit, &parts, &legend);

    let tiles = ["A", "B1", "B2"];
    // What loads bring beside A: a tile of B, or one for each product.
    let a_loaded = if smem.packed_a_bytes > 0 { smem.packed_a_bytes } else { smem.a_bytes };
    let b_bytes = (smem.stage_bytes - smem.made_bytes - a_loaded) / smem.b_tiles;
    let mut sizes = vec![("A", smem.a_bytes)];
    sizes.extend(tiles[1..].iter().take(smem.b_tiles as usize).map(|name| (*name, b_bytes)));
    let mut parts = Vec::new();
    let mut offset = 0;
    for (index, (name, size)) in sizes.into_iter().enumerate() {
        let name = if smem.b_tiles == 1 && name == "B1" { "B1 or B2" } else { name };
        parts.push(Part { name: name.into(), offset, size, fill: FILLS[(index + 2) % FILLS.len()] });
        offset += size;
    }
    if smem.packed_a_bytes > 0 {
        let name = "A as it arrives".to_owned();
        parts.push(Part { name, offset: smem.packed_a, size: smem.packed_a_bytes, fill: FILLS[5] });
    }
    let legend: Vec<(&str, String)> =
        parts.iter().map(|part| (part.fill, format!("{}: {} bytes", part.name, part.size))).collect();
    let heading = format!("One stage: {} bytes", smem.stage_bytes);
    y = bar(picture, y, &heading, smem.stage_bytes, &parts, &legend);

    let limit = plan.arch.limits().tmem_columns;
    if let Some(tmem) = plan.tmem() {
        let mut parts = Vec::new();
        let mut legend = Vec::new();
        for (index, region) in tmem.regions.iter().enumerate() {
            let (name, fill) = (region.name.to_string(), FILLS[index % FILLS.len()]);
            legend.push((
                fill,
                format!("{name}: columns {} to {}", region.offset, region.offset + region.size),
            ));
            parts.push(Part { name, offset: region.offset, size: region.size, fill });
        }
        let heading = format!(
            "Tensor memory: {} columns used, {} allocated, of {limit}; a column is 128 lanes of 32 bits",
            tmem.used, tmem.columns
        );
        bar(picture, y, &heading, limit, &parts, &legend);
        return;
    }
    let products = plan.strategy.products();
    let text = match &plan.target {
        Target::Wgmma(warpgroups) => format!(
            "Registers of a consumer thread: {} of {} hold sums; {} warpgroup(s) of 128 threads",
            warpgroups.sum_registers(products),
            warpgroups.registers[0],
            warpgroups.count
        ),
        Target::Mma(mma) => format!(
            "Registers of a consumer thread: {} of {} hold sums; {} warps",
            mma.sum_registers(products),
            mma.groups.registers[0],
            4 * mma.groups.count
        ),
        Target::Tcgen05(_) => return,
    };
    picture.text(LEFT, y + 12.0, &text);
}
