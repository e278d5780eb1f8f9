//! Problems and configurations for property tests, of every knob.

use proptest::prelude::*;
use silumin_codegen::arch::Arch;
use silumin_codegen::config::{
    AReuse, Accumulators, Buffers, CacheHints, Config, Consumers, CtaGroup, Eviction, KOrder, Multicast,
    Promotion, Raster, Schedule, Setting, SfLoad, SfPreload, Store, Strategy as Strategies, Switch, Tile,
    TmemLoad, TmemShape,
};

pub fn setting<T: Clone + std::fmt::Debug>(
    values: impl Strategy<Value = T>,
) -> impl Strategy<Value = Setting<T>> {
    prop_oneof![2 => Just(Setting::Auto), 3 => values.prop_map(Setting::Fixed)]
}

fn eviction() -> impl Strategy<Value = Option<Eviction>> {
    prop::option::of(prop::sample::select(vec![Eviction::Normal, Eviction::First, Eviction::Last]))
}

/// Sizes that are often legal, sometimes odd, sometimes absurd.
pub fn size() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 1u32..4000, 3 => (1u32..300).prop_map(|n| n * 32), 1 => any::<u32>()]
}

pub fn config(arch: Arch) -> impl Strategy<Value = Config> {
    let tile_n = prop_oneof![
        4 => prop::sample::select(vec![64u32, 128, 192, 256]),
        2 => (1u32..33).prop_map(|n| 8 * n),
        1 => any::<u32>()
    ];
    // Rows and K of tiles that are usual on the chip; K of a row of 128 bytes and more, and of less.
    let (usual_m, k_step) = match arch {
        Arch::Sm90a => (vec![64u32, 128, 128, 192, 256], 16),
        _ => (vec![128, 256], 64),
    };
    let tile_k = prop_oneof![6 => (1u32..9).prop_map(move |n| k_step * n), 1 => any::<u32>()];
    let tile_m = prop_oneof![9 => prop::sample::select(usual_m), 1 => any::<u32>()];
    // Weights on the row side turn the tile.
    let tile = (tile_m, tile_n, tile_k, any::<u8>()).prop_map(|(m, n, k, turned)| match turned % 4 {
        0 => Tile { m: n, n: m, k },
        _ => Tile { m, n, k },
    });
    let k_order = setting(prop_oneof![
        Just(KOrder::Forward),
        Just(KOrder::Reverse),
        Just(KOrder::PingPong),
        (0u32..6).prop_map(KOrder::SplitTail),
        any::<u32>().prop_map(KOrder::SplitTail)
    ]);
    let sf_preload = prop_oneof![
        Just(SfPreload::PerStage),
        Just(SfPreload::All),
        (0u32..6).prop_map(SfPreload::Ahead),
        any::<u32>().prop_map(SfPreload::Ahead)
    ];
    let cache =
        (eviction(), eviction(), eviction(), eviction()).prop_map(|(a, b, sf, c)| CacheHints { a, b, sf, c });
    let loads = (
        prop::sample::select(vec![
            TmemShape::S32x32b,
            TmemShape::S16x256b,
            TmemShape::S16x128b,
            TmemShape::S16x64b,
        ]),
        prop::option::of(prop_oneof![4 => prop::sample::select(vec![8u32, 16, 32]), 1 => any::<u32>()]),
    );
    let loads = loads.prop_map(|(shape, chunk)| Store::DirectBy(TmemLoad { shape, chunk }));
    let shapes = (
        setting(tile),
        setting(prop::sample::select(vec![CtaGroup::One, CtaGroup::Two])),
        setting(prop_oneof![5 => 1u32..9, 1 => any::<u32>()]),
        k_order,
        sf_preload,
        prop::sample::select(vec![Accumulators::Separate, Accumulators::SideBySide]),
        setting(prop::sample::select(vec![AReuse::None, AReuse::Collector])),
        setting(prop_oneof![5 => (5u32..10).prop_map(|n| 1 << n), 1 => any::<u32>()]),
        setting(cache),
        setting(prop_oneof![2 => prop::sample::select(vec![Store::Direct, Store::Tma]), 3 => loads]),
    );
    let schedule = prop_oneof![
        6 => prop::sample::select(vec![
            Schedule::OneTile,
            Schedule::Persistent,
            Schedule::Dynamic,
            Schedule::StreamK
        ]),
        2 => (0u32..9).prop_map(Schedule::SplitK),
        2 => prop::sample::select(vec![2u32, 4, 8, 5]).prop_map(Schedule::ClusterSplitK),
        1 => any::<u32>().prop_map(Schedule::ClusterSplitK),
        1 => any::<u32>().prop_map(Schedule::SplitK),
    ];
    let strategies =
        vec![Strategies::TwoPass, Strategies::SecondFused, Strategies::Sequential, Strategies::Interleaved];
    let raster = prop_oneof![
        2 => prop::sample::select(vec![Raster::AlongM, Raster::AlongN]),
        1 => any::<u32>().prop_map(Raster::Swizzled)
    ];
    let shares = (
        setting(prop::sample::select(strategies)),
        setting(schedule),
        raster,
        setting(prop_oneof![5 => 1u32..149, 1 => any::<u32>()]),
        setting(prop_oneof![3 => (0u32..4).prop_map(Buffers::Whole), 2 => Just(Buffers::Overlapped)]),
        prop::sample::select(vec![Switch::Off, Switch::On]),
        setting(prop::sample::select(vec![Switch::Off, Switch::On])),
        prop_oneof![
            4 => Just(Multicast::None),
            2 => prop::sample::select(vec![Multicast::A(2), Multicast::B(2), Multicast::A(8), Multicast::B(4)]),
            1 => any::<u32>().prop_map(Multicast::A),
        ],
        setting(prop::sample::select(vec![SfLoad::Bulk, SfLoad::TensorMap, SfLoad::Multicast])),
        // Of no use where tensor memory holds accumulators.
        prop_oneof![
            (if arch == Arch::Sm90a { 1 } else { 9 }) => Just(Setting::Auto),
            1 => setting(prop::sample::select(vec![Consumers::Cooperative, Consumers::PingPong]))
        ],
        prop_oneof![
            19 => Just(Setting::Auto),
            1 => setting(prop_oneof![
                Just(Promotion::Off),
                (0u32..9).prop_map(|n| Promotion::Every(64 * n)),
                any::<u32>().prop_map(Promotion::Every)
            ])
        ],
    );
    (shapes, shares).prop_map(|(shapes, shares)| {
        let (tile, cta_group, stages, k_order, sf_preload, accumulators, a_reuse, tmem_columns, cache, store) =
            shapes;
        let (strategy, schedule, raster, sms, accumulator_buffers, pdl, swap_ab, multicast, sf_load, consumers,
            promotion) =
            shares;
        Config {
            strategy,
            tile,
            cta_group,
            swap_ab,
            multicast,
            consumers,
            promotion,
            stages,
            k_order,
            sf_preload,
            sf_load,
            accumulators: Setting::Fixed(accumulators),
            accumulator_buffers,
            a_reuse,
            tmem_columns,
            schedule,
            raster: Setting::Fixed(raster),
            sms,
            cache,
            store,
            pdl,
        }
    })
}
