//! Scalar instructions against what an H200 made of them: `corpus/hardware/forms.txt`.

use silumin_emulator::{Arg, GlobalMemory, Launch, Module, Options};

const FORMS: &str = include_str!("corpus/hardware/forms.txt");
const OPERANDS: &[u8] = include_bytes!("corpus/hardware/operands.bin");
const LANES: usize = 256;
/// Six words of 32 bits and four of 64.
const OPERAND_BYTES: usize = 56;
/// Markers in place of a hash where the assembler is known to emit other code.
const EXPLAINED: [&str; 3] = ["video", "merged", "fns"];

/// An instruction with what gives it a carry and what brings its result to `%r0` or `%d0`.
fn code(form: &str) -> String {
    let opcode = form.split(' ').next().unwrap_or("");
    let mut out = String::new();
    if ["addc", "subc", "madc"].iter().any(|c| opcode.starts_with(c)) {
        out += "add.cc.u32 %r9, %r4, %r5; ";
    }
    out += form;
    let wide = form.contains("%d0");
    if opcode.contains(".cc") {
        // The carry goes into the highest bit.
        out += match wide {
            true => " addc.u32 %r8, 0, 0; cvt.u64.u32 %d8, %r8; shl.b64 %d8, %d8, 63; xor.b64 %d0, %d0, %d8;",
            false => " addc.u32 %r8, 0, 0; shl.b32 %r8, %r8, 31; xor.b32 %r0, %r0, %r8;",
        };
    }
    let first = form[opcode.len()..].trim_start();
    if first.starts_with("%p0|%p1") {
        out += " selp.u32 %r0, 1, 0, %p0; selp.u32 %r9, 2, 0, %p1; or.b32 %r0, %r0, %r9;";
    } else if first.starts_with("%p0") || first.starts_with("_|%p0") {
        out += " selp.u32 %r0, 1, 0, %p0;";
    } else if first.starts_with("%r0|%p0") {
        out += " selp.u32 %r9, 1, 0, %p0; xor.b32 %r0, %r0, %r9;";
    } else if first.starts_with("%h0") {
        out += " cvt.u32.u16 %r0, %h0;";
    }
    if !first.starts_with("%d0") {
        out += " cvt.u64.u32 %d0, %r0;";
    }
    out
}

/// A kernel whose lanes store 64 bits for each form.
fn kernel(forms: &[&str]) -> String {
    let mut text = String::from(
        ".version 9.0\n.target sm_90a\n.address_size 64\n\
         .visible .entry k(.param .u64 in, .param .u64 out) {\n\
         .reg .pred %p<8>; .reg .b16 %h<16>; .reg .b32 %r<32>; .reg .b64 %d<16>, %at, %in, %off;\n\
         ld.param.u64 %in, [in]; ld.param.u64 %at, [out]; mov.u32 %r20, %ctaid.x; mov.u32 %r22, %tid.x;\n\
         mad.lo.u32 %r20, %r20, 128, %r22; mul.wide.u32 %off, %r20, 56; add.u64 %in, %in, %off;\n\
         mul.wide.u32 %off, %r20, 8; add.u64 %at, %at, %off;\n",
    );
    for i in 0..6 {
        text += &format!("ld.global.b32 %r{}, [%in+{}];\n", i + 1, 4 * i);
    }
    for i in 0..4 {
        text += &format!("ld.global.b64 %d{}, [%in+{}];\n", i + 1, 24 + 8 * i);
    }
    for i in 1..6 {
        text += &format!("cvt.u16.u32 %h{i}, %r{i};\n");
    }
    text += "and.b32 %r23, %r6, 1; setp.ne.u32 %p1, %r23, 0; and.b32 %r23, %r6, 2; setp.ne.u32 %p2, %r23, 0;\n\
             setp.ne.u32 %p0, %r23, 0;\n";
    for (i, form) in forms.iter().enumerate() {
        // Some instructions have predicates as results and sources: these start anew for each.
        text += &format!("{}\nst.global.b64 [%at+{}], %d0;\n", code(form), 8 * LANES * i);
    }
    text + "ret;\n}\n"
}

/// Writes the kernel, its launch file and its operands to a folder that can be carried to a machine with a GPU.
fn export(folder: &std::path::Path, forms: &[&str], operands: &[u8]) {
    let launch = format!(
        "ptx = \"k.ptx\"\nkernel = \"k\"\ngrid = [2, 1, 1]\nblock = [128, 1, 1]\n[buffers.in]\nfile = \"in.bin\"\n\
         [buffers.out]\nbytes = {}\n[[params]]\npointer = \"in\"\n[[params]]\npointer = \"out\"\n",
        8 * LANES * forms.len()
    );
    std::fs::create_dir_all(folder.join("expected")).expect("a folder for the export");
    std::fs::write(folder.join("launch.toml"), launch).expect("the launch file");
    std::fs::write(folder.join("k.ptx"), kernel(forms)).expect("the kernel");
    std::fs::write(folder.join("in.bin"), operands).expect("the operands");
}

#[test]
fn scalar_instructions_are_those_of_an_h200() {
    let (mut wrong, mut explained, mut agreed, mut count) = (Vec::new(), 0, 0, 0);
    for (kind, section) in FORMS.split("\n[").skip(1).enumerate() {
        let lines: Vec<(&str, &str)> =
            section.lines().skip(1).map(|l| l.split_once(' ').expect("a hash and a form")).collect();
        let bytes = LANES * OPERAND_BYTES;
        let operands = &OPERANDS[kind * bytes..][..bytes];
        // As the probes had them: predicates that one form writes are what a later one reads.
        for part in lines.chunks(96) {
            let forms: Vec<&str> = part.iter().map(|&(_, form)| form).collect();
            let module = Module::parse("forms", &kernel(&forms)).unwrap_or_else(|e| panic!("{e}"));
            let mut memory = GlobalMemory::new();
            let source = memory.alloc_from("in", operands);
            let out = memory.alloc("out", 8 * LANES as u64 * forms.len() as u64);
            let args = vec![Arg::Pointer(memory.address(&source)), Arg::Pointer(memory.address(&out))];
            if let Some(root) = std::env::var_os("SILUMIN_EXPORT") {
                count += 1;
                let folder = std::path::PathBuf::from(root).join(format!("forms-{count}"));
                export(&folder, &forms, operands);
            }
            let launch =
                Launch { grid: [2, 1, 1], block: [128, 1, 1], cluster: [1, 1, 1], dynamic_smem: 0, args };
            let report = module.run("k", &launch, &memory, &Options::default()).expect("it runs");
            assert!(report.is_clean(), "{}", report.findings[0]);
            let results = memory.read(&out);
            if let Some(root) = std::env::var_os("SILUMIN_EXPORT") {
                let file = format!("forms-{count}/expected/out.bin");
                std::fs::write(std::path::PathBuf::from(root).join(file), &results)
                    .expect("an expected buffer");
            }
            for (&(want, form), words) in part.iter().zip(results.chunks_exact(8 * LANES)) {
                if EXPLAINED.contains(&want) {
                    explained += 1;
                    continue;
                }
                let hash =
                    words.iter().fold(0x811c_9dc5u32, |h, &b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
                agreed += 1;
                if format!("{hash:08x}") != want {
                    wrong.push(form);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} instructions: {wrong:#?}", wrong.len());
    assert_eq!((agreed + explained, EXPLAINED.len()), (2993, 3));
    assert!(agreed > 2800, "only {agreed} are compared");
}
