//! The view of an entry, from its plan.

use super::*;

impl<'a> View<'a> {
    pub fn new(p: &'a Plan, gate: &Expr, code: &GateCode, role: Role) -> Result<Self, RenderError> {
        let target = p.isa().view(p);
        let barrier = |kind| Place(p.barrier(kind));
        let both = barrier(BarrierKind::ProductsDone);
        let product2_done = barrier(BarrierKind::Product2Done);
        let product1_done = barrier(BarrierKind::Product1Done).or(both);
        let all_done = both.or(product2_done);
        let hint = |hint: Option<Eviction>, register: &'static str| hint.map_or("", |_| register);
        let policy_of = |operand, hint: Option<Eviction>| {
            hint.map(|hint| Policy { operand, bits: policy_bits(hint), hint })
        };
        let scale_tx = match p.scales.slot_tx {
            tx if p.sf_preload == SfPreload::PerStage => (tx, p.scales.last_slot_tx),
            _ => (0, 0),
        };
        let policies = Policies {
            a: hint(p.cache.a, "%policy_a"),
            b: hint(p.cache.b, "%policy_b"),
            sf: hint(p.cache.sf, "%policy_sf"),
        };
        // The leader of a pair expects the loads of both.
        let group = p.cta_group.ctas();
        let raw = role == Role::Product;
        let (output, output_name) = match p.epilogue.product {
            Some(product) if raw => (product, "r1"),
            _ => (p.epilogue.c, "c"),
        };
        let packing = if raw { Packing::PRODUCT } else { Packing::of(p.problem.formats.c) };
        let transposed = p.swap_ab && role != Role::Gate;
        let (cluster_ctas, shared) = (p.cluster_ctas(), p.multicast.ctas());
        let rows_shared = cluster::shared_sides(p)[0];
        let shared_rows = match (rows_shared, p.accumulators) {
            (true, _) => p.cta_rows,
            // Of a pair, each CTA loads its half of the columns; side by side, B1 or B2 whole.
            (false, Accumulators::Separate) => p.mma_columns / group,
            (false, Accumulators::SideBySide) => p.mma_columns,
        };
        let chunk = match role {
            // All that the largest blocks of C with scale factors have.
            Role::Gate if p.problem.formats.c.scales().is_some() => 32,
            Role::Gate if p.problem.shape.n.is_multiple_of(8) => 8,
            Role::Gate => 4,
            Role::Fused | Role::Product | Role::Gated => p.epilogue.chunk,
        };
        let held = match role {
            Role::Gate => Held::Row,
            Role::Fused | Role::Product | Role::Gated => target.held,
        };
        // Registers that a thread has a chunk of one product in.
        let count = match role {
            Role::Gate => chunk,
            Role::Fused | Role::Product | Role::Gated => target.registers,
        };
        let lanes = held.lanes();
        let padded_rows = p.problem.shape.m.next_multiple_of(128);
        // The gate's own kernel has rows for the pads of scale factors only.
        let gate_pads = p.problem.formats.c.scales().is_some() && padded_rows != p.problem.shape.m;
        let ragged = match role {
            Role::Gate => Ragged { rows: gate_pads, columns: !p.problem.shape.n.is_multiple_of(chunk) },
            Role::Fused | Role::Product | Role::Gated => {
                Ragged { rows: p.epilogue.rows_ragged, columns: p.epilogue.columns_ragged }
            }
        };
        let reads_product = role == Role::Gated;
        let gated = !raw;
        let scales = p.problem.formats.c.scales().filter(|_| gated);
        let scale_block = scales.map_or(chunk, |scales| scales.block);
        let scale_columns = scales.map_or(0, |scales| scales.columns(p.problem.shape.n));
        // Behind the scale factors of the row's last chunk.
        let pads = match scales {
            Some(_) if !transposed => {
                chunk / scale_block..chunk / scale_block + scale_columns.next_multiple_of(4) - scale_columns
            }
            _ => 0..0,
        };
        let nibbles = transposed && output.element_bits == 4;
        let staging = output.staging.filter(|_| gated);
        let shape = p.problem.shape;
        let inputs = Inputs::new(if gated { &code.whole.vectors } else { &[] }, transposed, held);
        let several = shape.groups != Groups::One;
        let m_limit = if shape.groups.by_rows() { "%group_rows".to_owned() } else { shape.m.to_string() };
        let (row_inputs, column_inputs) = (!inputs.rows.is_empty(), !inputs.columns.is_empty());
        let kept = KeptProducts::new(
            p,
            gate,
            code.whole.arch,
            [chunk, count],
            ragged,
            held,
            [role != Role::Gate, target.shared_columns > 0],
        );
        let kept = Some(kept).filter(|_| gated && p.epilogue.kept.is_some());
        // A part of the gate, and what is kept of the products that it is the last to read.
        let steps = |part: Option<&Fragment>, mut texts: Vec<String>, base: u32, last: &[Product]| {
            let mut fragments: Vec<&Fragment> = part.into_iter().collect();
            if let Some(kept) = &kept {
                kept.scale(&mut texts, last)?;
                fragments.extend(kept.fragments(last));
            }
            fragments.retain(|_| !transposed || held.lanes().is_some());
            Ok::<_, RenderError>(inputs::steps(&fragments, texts, base, ragged, shape, held))
        };
        let stores = |product: Product, base: u32| -> Vec<Kept> {
            kept.as_ref().and_then(|kept| kept.stores(product, base)).into_iter().collect()
        };
        let early_chunks: Result<Vec<EarlyChunk>, RenderError> = (0..p.epilogue.early_chunks)
            .map(|i| {
                let column = i * chunk;
                // Where buffers share columns, the pointers move along.
                let base = if target.shared_columns > 0 { 0 } else { column };
                let split = code.split.as_ref();
                let early = gate_text::early(code, column, count, held)?;
                let late = gate_text::late(code, column, count, held)?;
                let late_code = split.map_or(&code.whole, |split| &split.late);
                Ok(EarlyChunk {
                    column,
                    early: steps(split.map(|split| &split.early), early, base, &[Product::First])?,
                    kept: stores(Product::First, base),
                    // By then the pointers have come this far themselves.
                    late: steps(Some(late_code), late, 0, &[Product::Second])?,
                    late_kept: stores(Product::Second, 0),
                })
            })
            .collect();
        let both = [Product::First, Product::Second];
        let whole = match gated {
            true => steps(Some(&code.whole), gate_text::whole(code, count, held)?, 0, &both)?,
            false => Vec::new(),
        };
        let kept_chunk: Vec<Kept> = both.into_iter().flat_map(|product| stores(product, 0)).collect();
        let keeps = !kept_chunk.is_empty();
        let row_items = p.problem.shape.n.div_ceil(chunk);
        let partial_bytes = 4
            * u64::from(p.cta_rows)
            * u64::from(p.mma_columns)
            * u64::from(if p.strategy.is_fused() { 2u32 } else { 1 });
        let scale_tensors: Vec<&'static str> = match (p.scales.box_blocks, p.strategy, role) {
            _ if p.kind.scales_per_mma() == 0 => Vec::new(),
            (Some(_), ..) => Vec::new(),
            (_, Strategy::Interleaved | Strategy::Sequential, _) => vec!["sfa", "sfb1", "sfb2"],
            (_, _, Role::Gated) => vec!["sfa", "sfb2"],
            _ => vec!["sfa", "sfb1"],
        };
        let scale_tensors: Vec<&'static str> =
            scale_tensors.into_iter().filter(|name| *name != "sfa" || p.scales.a_row_blocks > 0).collect();
        let passes = producer::passes(p, role, policies, [product1_done, all_done], target.second_column);
        let k_count = if p.work.has_ranges() { "%k_count".to_owned() } else { p.k_loop.tiles.to_string() };
        Ok(View {
            p,
            about: match role {
                Role::Fused => "Both products and the gate.",
                Role::Product => "One product, to fp32.",
                Role::Gated => "The second product, and the gate with the first one read back.",
                Role::Gate => "The gate.",
            },
            epilogue_does: if raw { "store" } else { "gate, round, store" },
            b_names: match (p.strategy, role) {
                (Strategy::Interleaved, _) => "B1, B2",
                (Strategy::Sequential, _) => "B1, then B2",
                _ => "B",
            },
            looped: p.work.is_looped(),
            ranges: p.work.has_ranges(),
            // More than both parts that start.
            handed_over: if p.hands_over() { 4 } else { 0 },
            part_known: barrier(BarrierKind::PartKnown),
            waits: producer::waits(p),
            cluster_parts: p.work.cluster_parts > 1,
            leave: target.leave,
            places_staging: target.places_staging,
            meets_in_producer: target.meets_in_producer,
            row_block_above: p.interleaved_rows() && p.scales.b_row_blocks > 1,
            dynamic: p.work.schedule == Schedule::Dynamic,
            buffered: p.isa().buffers() > 1,
            overlapped: target.shared_columns > 0,
            shared_chunks: target.shared_columns / p.epilogue.chunk,
            main_count: match p.k_loop.tail_tiles {
                0 => k_count.clone(),
                _ => p.k_loop.main_tiles.to_string(),
            },
            k_count,
            groups: GroupsView::new(p),
            raster_group: raster_group(p),
            one_row_of_tiles: p.work.m_items == 1 && !shape.groups.by_rows(),
            raster_band: u64::from(raster_group(p)) * u64::from(p.work.n_items),
            senders: cluster::senders(&passes),
            sends_halves: passes
                .iter()
                .flat_map(|pass| &pass.scale_boxes)
                .any(|load| load.sent.as_ref().is_some_and(|sent| sent.half)),
            sfb_step: p.smem.sfb2 - p.smem.sfb1,
            passes,
            full: barrier(BarrierKind::Full),
            empty: barrier(BarrierKind::Empty),
            sf_full: barrier(BarrierKind::SfFull),
            sf_empty: barrier(BarrierKind::SfEmpty),
            sf_ring: p.barrier(BarrierKind::SfEmpty).is_some(),
            product1_done,
            product2_done,
            all_done,
            accumulators_free: barrier(BarrierKind::AccumulatorsFree).or(barrier(BarrierKind::SharedFree)),
            answer_full: barrier(BarrierKind::AnswerFull),
            answer_read: barrier(BarrierKind::AnswerRead),
            barriers: barriers(p),
            maps: maps(p, role),
            load_policies: [("a", p.cache.a), ("b", p.cache.b), ("sf", p.cache.sf)]
                .into_iter()
                .filter_map(|(operand, hint)| policy_of(operand, hint))
                .collect(),
            column_blocks: match p.kind.scales_per_mma() {
                0 => Vec::new(),
                _ => (0..p.mma_columns.div_ceil(128)).collect(),
            },
            stage_tx: group * (p.smem.stage_tx + scale_tx.0),
            last_stage_tx: group * (p.smem.stage_tx + scale_tx.1),
            slot_tx: group * p.scales.slot_tx,
            last_slot_tx: group * p.scales.last_slot_tx,
            ragged_loads: p.scales.slot_tx != p.scales.last_slot_tx,
            row_tensors: scale_tensors.iter().copied().filter(|name| (*name == "sfa") != p.swap_ab).collect(),
            column_tensors: scale_tensors
                .iter()
                .copied()
                .filter(|name| (*name == "sfa") == p.swap_ab)
                .collect(),
            scale_tensors,
            boxed: p.scales.box_blocks.is_some(),
            scale_tile_units: p.scales.tile_bytes / 8,
            group,
            pair: group == 2,
            pair_columns: p.mma_columns / 2,
            producer: format!("warp {}", target.producer_warp),
            sharers: shared,
            cluster: cluster_ctas,
            several: cluster_ctas > 1,
            all_ctas: (1 << cluster_ctas) - 1,
            even_ctas: 0x5555 & ((1 << cluster_ctas) - 1),
            places: Places::new(p),
            shares_scales: p.scales.shared && shared > 1,
            shares: shared > 1,
            shared_rows: shared_rows / shared,
            shared_bytes: shared_rows / shared
                * match p.kind == MmaKind::Decoded && (rows_shared || p.decodes_a()) {
                    true => p.k_loop.b_tile_bytes,
                    false => p.k_loop.tile_bytes / p.smem.boxes,
                },
            shared_row: if rows_shared { "%row_r" } else { "%row_c" },
            row_tile: if p.swap_ab { "%n_tile" } else { "%m_tile" },
            column_tile: if p.swap_ab { "%m_tile" } else { "%n_tile" },
            last_k_tile: p.k_loop.tiles - 1,
            operand_high: format!("{:#010x}", p.descriptors.operand_high),
            scaled: p.kind.scales_per_mma() > 0,
            scales_per_stage: p.kind.scales_per_mma() > 0 && p.sf_preload == SfPreload::PerStage,
            scalars: if gated { code.whole.scalars.clone() } else { Vec::new() },
            c_policy: policy_of("c", p.cache.c).filter(|_| gated),
            chunk,
            lanes,
            rows: held.rows(),
            thread_row: if lanes.is_some() { "%thread_row" } else { "%thread" },
            thread_column: if lanes.is_some() { "%thread_column" } else { "%column0" },
            loads_first: !reads_product,
            loads_second: !raw,
            reads_product,
            packed_registers: if nibbles || !packing.rounds() && !target.keeps_words {
                0
            } else {
                count / packing.per_word
            },
            early_registers: p.epilogue.early_chunks * chunk,
            early_chunks: early_chunks?,
            loop_chunks: p.epilogue.early_chunks < p.epilogue.chunks,
            whole,
            kept: kept_chunk,
            inputs,
            output,
            output_name,
            staging,
            needs_rows: staging.is_none() || reads_product || row_inputs || keeps || scales.is_some(),
            needs_columns: (ragged.columns
                && (staging.is_none()
                    || reads_product
                    || column_inputs
                    || keeps
                    || scales.is_some() && !transposed))
                || pads.clone().next().is_some(),
            row_limit: match (p.swap_ab, raw) {
                (false, _) => m_limit.clone(),
                (true, false) => shape.n.to_string(),
                // The gate's kernel reads whole vectors.
                (true, true) => shape.n.next_multiple_of(4).to_string(),
            },
            column_limit: match p.swap_ab {
                true => m_limit,
                // Whole vectors, again, though no thread has all of one.
                false if raw && lanes.is_some() => shape.n.next_multiple_of(4).to_string(),
                false => shape.n.to_string(),
            },
            c_row: match (several, p.swap_ab) {
                (true, _) => "%c_row",
                (false, true) if lanes.is_some() => "%thread_column",
                (false, true) => "%column0",
                (false, false) => "%row",
            },
            first_row: match p.swap_ab {
                true if lanes.is_some() => "%thread_column",
                true => "%column0",
                false => "%row",
            },
            vector_start: match (several, role) {
                (true, _) if transposed => "%c_row",
                (true, _) => "%vector_column",
                (false, Role::Gate) => "%column",
                (false, _) if lanes.is_some() => "%thread_column",
                (false, _) => "%column0",
            },
            c_rank: GroupsView::rank(several.then_some(shape.groups.count())),
            c_box_row: if several { "%row0, %group" } else { "%row0" },
            c_box_column: if several { "%column0, %group" } else { "%column0" },
            vector_row: match (several, transposed) {
                _ if role == Role::Gate => "%row",
                (false, _) => "%row",
                (true, false) => "%c_row",
                (true, true) => "%vector_column",
            },
            needs_c_row: several
                && (staging.is_none()
                    || reads_product
                    || keeps
                    || if transposed { column_inputs } else { row_inputs }),
            vector_columns: several && if transposed { row_inputs } else { column_inputs },
            c_column: match p.swap_ab {
                true => "%row",
                false if lanes.is_some() => "%thread_column",
                false => "%column0",
            },
            staged_columns: staging.filter(|_| transposed).map_or(0, |staging| staging.span),
            words: if nibbles { Vec::new() } else { packing.words(count) },
            units: epilogue::units(packing, chunk),
            packing,
            vectors: match held {
                Held::Row => epilogue::vectors(packing, &output, chunk, ragged),
                Held::Lanes(lanes) => lanes.vectors(packing, &output, ragged),
                Held::Column if nibbles => Vec::new(),
                Held::Column => {
                    let span = staging.map_or(0, |staging| staging.span);
                    epilogue::transposed::vectors(packing, &output, chunk, ragged, span)
                }
            },
            c_hint_operand: if gated { hint(p.cache.c, ", %policy_c") } else { "" },
            chunk_bytes: match transposed {
                false => u64::from(chunk * output.element_bits / 8),
                true => u64::from(chunk) * output.row_bytes,
            },
            stores: staging.map_or(Vec::new(), |s| epilogue::stores(s, hint(p.cache.c, "%policy_c"))),
            product_vectors: match (held, p.epilogue.product) {
                (Held::Column, Some(product)) => epilogue::transposed::product_loads(&product, chunk, ragged),
                (Held::Lanes(lanes), Some(product)) => lanes.product_loads(&product, ragged),
                _ => epilogue::product_loads(chunk, ragged),
            },
            product_row_bytes: p.epilogue.product.map_or(0, |product| product.row_bytes),
            product_chunk_bytes: match p.epilogue.product.filter(|_| transposed) {
                None => (4 * chunk).into(),
                Some(product) => u64::from(chunk) * product.row_bytes,
            },
            block_scaled: scales.is_some(),
            tensor_scale: scales.is_some() && p.problem.formats.c.has_tensor_scale(),
            scale_block,
            scale_groups: scale_groups(chunk, scale_block),
            scale_row_bytes: scales.map_or(0, |scales| scales.blocked_bytes(128, p.problem.shape.n)),
            scales_transposed: scales
                .filter(|_| transposed)
                .map(|scales| TransposedScales::new(p, scales, chunk)),
            rows_padded: ragged.rows,
            first_column: if role == Role::Gate { "" } else { "%column0" },
            nibbles: if nibbles { block_scale::nibbles(&output, chunk, ragged) } else { Vec::new() },
            nibbles_guarded: ragged.columns && staging.is_none(),
            padded_rows: match shape.groups.by_rows() {
                true => "%padded_rows".to_owned(),
                false => shape.m.next_multiple_of(128).to_string(),
            },
            scale_store: if chunk / scale_block == 2 { "b16" } else { "b8" },
            scale_pads: pads.collect(),
            partial_products: epilogue::partial_products(p, role, target.second_column),
            addends: target.addends.unwrap_or_else(|| epilogue::addends(p, role)),
            partial_bytes,
            partial_stride: partial_bytes * u64::from(cluster_ctas),
            partial_column_bytes: 4 * p.cta_rows,
            sum_chunk_bytes: 4 * p.cta_rows * chunk,
            sum_part_bytes: 4 * p.cta_rows * p.epilogue.columns,
            longer_units: p.work.longer * (p.work.share + 1),
            gate_threads: GATE_THREADS,
            gate_items: (if gate_pads { u64::from(padded_rows) } else { p.problem.shape.rows() })
                * u64::from(row_items),
            gate_row_items: row_items,
        })
    }
}

/// The results of a chunk, by the scale factor they share.
fn scale_groups(chunk: u32, block: u32) -> Vec<Vec<u32>> {
    (0..chunk / block).map(|group| (group * block..(group + 1) * block).collect()).collect()
}

/// Rows of tiles in a band of the swizzled raster: no more than there are.
fn raster_group(p: &Plan) -> u32 {
    match p.work.raster {
        Raster::Swizzled(group) => group.min(p.work.m_items),
        Raster::AlongM | Raster::AlongN => p.work.m_items,
    }
}

/// The 64-bit policies that `createpolicy.fractional.L2::*.b64 policy, 1.0` makes, as constants
/// (CUTLASS, `cute/arch/copy_sm90_desc.hpp`, `TMA::CacheHintSm90`).
fn policy_bits(hint: Eviction) -> &'static str {
    match hint {
        Eviction::Normal => "0x1000000000000000",
        Eviction::First => "0x12f0000000000000",
        Eviction::Last => "0x14f0000000000000",
    }
}

fn barriers(p: &Plan) -> Vec<BarrierView> {
    let view = |b: &crate::plan::Barrier| BarrierView {
        kind: b.kind,
        offsets: (0..b.count).map(|i| b.offset + 8 * i).collect(),
        arrivals: b.arrivals,
    };
    p.barriers.iter().map(view).collect()
}
