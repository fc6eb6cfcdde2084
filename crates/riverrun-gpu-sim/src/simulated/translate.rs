//! From CUDA C++ to C++ for the simulation: inline PTX becomes calls, and the kernel gets an entry that takes its
//! arguments from an array.

/// The translation, to be compiled after `runtime.h`, or the reason against it.
pub fn translate(source: &str) -> Result<String, String> {
    let mut lines = Vec::new();
    for line in source.lines() {
        // The host has the same ones by other names.
        let known = ["typedef unsigned", "typedef signed", "#include <cuda"];
        if known.iter().any(|start| line.starts_with(start)) {
            continue;
        }
        lines.push(shared_memory(line));
    }
    // Other threads run before a volatile word is read.
    let read = " const* tmp = reinterpret_cast<volatile";
    let text = lines.join("\n");
    let text = ["uint32_t", "uint64_t"].iter().fold(text, |text, word| {
        let load = format!("volatile {word}{read}");
        text.replace(&load, &format!("sim::poll(); {load}"))
    });
    let text = inline_ptx(&text)?;
    let entry = entry(&text)?;
    Ok(format!("{text}\n{entry}"))
}

/// `extern __shared__ __align__(16) char v9[];` as a pointer.
fn shared_memory(line: &str) -> String {
    let pointer = || {
        let (before, rest) = line.split_once("extern __shared__ __align__(")?;
        let (_, rest) = rest.split_once(") char ")?;
        let (name, after) = rest.split_once("[];")?;
        Some(format!("{before}char *{name} = sim::shared();{after}"))
    };
    pointer().unwrap_or_else(|| line.to_string())
}

fn inline_ptx(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("asm ") {
        out.push_str(&rest[..at]);
        let statement = &rest[at..];
        let end = closing(&statement[statement.find('(').ok_or("an asm without operands")?..])
            .ok_or("an asm without an end")?
            + statement.find('(').unwrap_or(0);
        out.push_str(&call(&statement[..end])?);
        rest = &statement[end + 1..];
    }
    Ok(out + rest)
}

/// The end of the parenthesis that a text begins with, quoted text ignored.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quoted) = (0, false);
    for (at, c) in text.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

/// A call for `asm volatile("<instruction> ..." : "=r"(x) : "l"(y) : ...`.
fn call(statement: &str) -> Result<String, String> {
    let mut parts = statement.splitn(3, '"');
    let (_, template) = (parts.next(), parts.next().unwrap_or_default());
    let operands = operands(parts.next().unwrap_or_default());
    let of = |kind: bool| -> Vec<&str> {
        let some = operands.iter().filter(|(written, _)| *written == kind);
        some.map(|(_, expression)| *expression).collect()
    };
    let (to, from) = (of(true), of(false));
    // A branch for the compiler alone.
    if template.contains("nanosleep") {
        return Ok(String::new());
    }
    if let Some(instructions) = template.strip_prefix('{') {
        let all: Vec<&str> = operands.iter().map(|(_, expression)| *expression).collect();
        return block(instructions, &all);
    }
    let name = template.split_whitespace().next().unwrap_or_default();
    let name = name.trim_end_matches(';');
    let one = |function: &str| format!("{} = {function}({})", to[0], from.join(", "));
    Ok(match name {
        "mov.u64" if template.contains("%globaltimer") => format!("{} = sim::now()", to[0]),
        "mov.u64" | "cvta.to.shared.u64" => format!("{} = (uint64_t){}", to[0], from[0]),
        "ex2.approx.ftz.f32" => one("exp2f"),
        "rcp.approx.ftz.f32" => one("1.0f / "),
        "sqrt.approx.ftz.f32" => one("sqrtf"),
        "rsqrt.approx.ftz.f32" => one("rsqrt"),
        "max.NaN.ftz.f32" => one("sim::larger_or_nan"),
        "shfl.sync.bfly.b32" => {
            format!("{} = __shfl_xor_sync(-1, {}, {})", to[0], from[0], from[1])
        }
        "shfl.sync.idx.b32" => format!("{} = __shfl_sync(-1, {}, {})", to[0], from[0], from[1]),
        "cvt.rn.bf16x2.f32" => one("sim::pack_bf16"),
        "cvt.rn.f16x2.f32" => one("sim::pack_f16"),
        "atom.relaxed.add.u32" => {
            format!("{} = sim::add((uint64_t){}, {})", to[0], from[0], from[1])
        }
        "atom.relaxed.gpu.global.add.u32" => {
            format!("{} = sim::add((uint64_t){}, {})", to[0], from[0], from[1])
        }
        "atom.relaxed.gpu.global.cas.b32" => format!(
            "{} = sim::replace({}, {}, {})",
            to[0], from[0], from[1], from[2]
        ),
        "ld.relaxed.gpu.global.u32" => format!("{} = sim::load({})", to[0], from[0]),
        "prefetch.global.L2" => String::new(),
        "cp.async.cg.shared.global" => {
            format!("sim::copy({}, {}, {}, 16)", from[0], from[1], from[2])
        }
        "cp.async.ca.shared.global" => {
            format!("sim::copy({}, {}, {}, 4)", from[0], from[1], from[2])
        }
        // What is written is seen at once.
        "fence.proxy.async.shared::cta" => String::new(),
        "cp.async.commit_group" => "sim::end_group()".into(),
        "cp.async.wait_group" => {
            let left = template.split_whitespace().nth(1).unwrap_or_default();
            format!("sim::wait_groups({})", left.trim_end_matches(';'))
        }
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16" => {
            format!("sim::blocks<false>(&{}, {})", to[0], from[0])
        }
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16" => {
            format!("sim::blocks<true>(&{}, {})", to[0], from[0])
        }
        "stmatrix.sync.aligned.m8n8.x4.shared.b16" => {
            format!(
                "sim::put_blocks<false>({}, {{{}}})",
                from[0],
                from[1..].join(", ")
            )
        }
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16" => {
            format!(
                "sim::put_blocks<true>({}, {{{}}})",
                from[0],
                from[1..].join(", ")
            )
        }
        "movmatrix.sync.aligned.m8n8.trans.b16" => format!("{} = sim::turned({})", to[0], from[0]),
        "ld.shared.u32" => format!("memcpy(&{}, sim::shared_at({}), 4)", to[0], from[0]),
        "ld.shared.v2.f32" => format!("memcpy(&{}, sim::shared_at({}), 8)", to[0], from[0]),
        "ld.shared.v4.u32" => format!("memcpy(&{}, sim::shared_at({}), 16)", to[0], from[0]),
        "st.shared.u32" => {
            let word = format!("uint32_t word = {}", from[1]);
            format!(
                "{{ {word}; memcpy(sim::shared_at({}), &word, 4); }}",
                from[0]
            )
        }
        "st.shared.v4.u32" => {
            format!("sim::put({}, {{{}}})", from[0], from[1..].join(", "))
        }
        "mapa.shared::cluster.u64" => {
            format!("{} = sim::neighbour({}, {})", to[0], from[0], from[1])
        }
        "ld.relaxed.cluster.shared::cta.u64" => format!("{} = sim::load_long({})", to[0], from[0]),
        "st.relaxed.cluster.shared::cluster.u64" => {
            format!("sim::store_long({}, {})", from[0], from[1])
        }
        "barrier.cluster.arrive.release" => "sim::arrive_cluster()".into(),
        "barrier.cluster.wait.acquire" => "sim::wait_cluster()".into(),
        // Launches run one after another.
        "griddepcontrol.wait" | "griddepcontrol.launch_dependents" => String::new(),
        "ld.global.u16" => format!("memcpy(&{}, (const void *){}, 2)", to[0], from[0]),
        "ld.global.u32" => format!("memcpy(&{}, (const void *){}, 4)", to[0], from[0]),
        "st.relaxed.gpu.global.u32" => format!("sim::store({}, {})", from[0], from[1]),
        "ld.relaxed.gpu.global.v4.u32"
        | "ld.global.L1::no_allocate.v4.u32"
        | "ld.global.v4.u32" => {
            let (words, _) = to[0].rsplit_once('.').ok_or("words without a vector")?;
            format!("sim::load_4({words}, {})", from[0])
        }
        _ => {
            let (widen, per_word) = match name {
                "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" => ("sim::from_bf16", 2),
                "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" => ("sim::from_f16", 2),
                "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" => ("sim::from_bf16", 1),
                _ => return Err(format!("unknown instruction: {template}")),
            };
            format!(
                "sim::mma<{widen}, {per_word}>(&{}, {{{}}}, {{{}}}, {{{}}})",
                to[0],
                from[..4].join(", "),
                from[4..6].join(", "),
                from[6..].join(", ")
            )
        }
    })
}

/// A block of instructions with registers of its own. Operands have the numbers of their order.
fn block(instructions: &str, operands: &[&str]) -> Result<String, String> {
    let of = |name: &str| -> String {
        let operand = name.strip_prefix('%').and_then(|n| n.parse().ok());
        match operand.and_then(|n: usize| operands.get(n)) {
            Some(expression) => expression.to_string(),
            None => name.to_string(),
        }
    };
    // Behind it stands a comment.
    let (instructions, _) = instructions.split_once("//").unwrap_or((instructions, ""));
    let instructions = instructions.trim_end().trim_end_matches('}');
    let mut out = String::from("{ ");
    for line in instructions.split(';').map(str::trim) {
        let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
        let names: Vec<String> = rest
            .split(|c: char| ", {}".contains(c))
            .filter(|name| !name.is_empty())
            .map(of)
            .collect();
        let [to, a, b] = [0, 1, 2].map(|n| names.get(n).map_or("", String::as_str));
        let text = match name {
            "" => continue,
            ".reg" => {
                let kind = match to {
                    ".pred" => "bool",
                    ".b32" => "uint32_t",
                    _ => "uint64_t",
                };
                format!("{kind} {}", names[1..].join(", "))
            }
            "and.b32" => format!("{to} = {a} & {b}"),
            "shr.u32" => format!("{to} = {a} >> {b}"),
            "add.u32" => format!("{to} = {a} + {b}"),
            "setp.ne.u32" => format!("{to} = {a} != {b}"),
            "setp.eq.u32" => format!("{to} = {a} == {b}"),
            "mov.b32" | "mov.f32" => format!("{to} = {a}"),
            "mov.b64" => format!("{to} = (uint64_t){b} << 32 | {a}"),
            "wgmma.fence.sync.aligned"
            | "wgmma.commit_group.sync.aligned"
            | "wgmma.wait_group.sync.aligned" => continue,
            _ => {
                let widen = match name.rsplit('.').next() {
                    Some("bf16") => "sim::from_bf16",
                    Some("f16") => "sim::from_f16",
                    _ => "",
                };
                let shape = name.strip_prefix("wgmma.mma_async.sync.aligned.m64n");
                let columns = shape.and_then(|shape| shape.split_once("k16.f32."));
                let columns = columns.and_then(|(columns, _)| columns.parse::<usize>().ok());
                let (Some(columns), false) = (columns, widen.is_empty()) else {
                    return Err(format!("unknown instruction: {line}"));
                };
                let (sums, rest) = names.split_at(columns / 2);
                let sums: Vec<String> = sums.iter().map(|name| format!("&{name}")).collect();
                // `A` is four words, or a tile, which has a flag of its own at the end.
                let (left, rest) = rest.split_at(if rest.len() > 7 { 4 } else { 1 });
                let a = match left {
                    [rows] => format!("sim::rows_of({rows})"),
                    words => format!("{{{}}}", words.join(", ")),
                };
                format!(
                    "float *sums[] = {{{}}}; sim::wgmma<{widen}, {columns}>(sums, {a}, {}, {}, {})",
                    sums.join(", "),
                    rest[0],
                    rest[1],
                    rest[rest.len() - 1],
                )
            }
        };
        match name.starts_with("wgmma") {
            true => out.push_str(&format!("{{ {text}; }} ")),
            false => out.push_str(&format!("{text}; ")),
        }
    }
    Ok(out + "}")
}

/// Each operand: whether it is written, and its expression.
fn operands(mut text: &str) -> Vec<(bool, &str)> {
    let mut found = Vec::new();
    while let Some(at) = text.find('"') {
        let Some((constraint, after)) = text[at + 1..].split_once('"') else {
            break;
        };
        text = after;
        if !after.starts_with('(') {
            continue;
        }
        let Some(end) = closing(after) else { break };
        found.push((constraint.starts_with('='), &after[1..end]));
        text = &after[end..];
    }
    found
}

/// The entry that the host calls, with the buffers in their order, the scalars, and the sizes of the launch.
fn entry(text: &str) -> Result<String, String> {
    let missing = "a source without a kernel";
    let (_, head) = text.split_once("__launch_bounds__(").ok_or(missing)?;
    let (_, head) = head.split_once(')').ok_or(missing)?;
    let (cluster, head) = match head.trim_start().strip_prefix("__cluster_dims__(") {
        Some(rest) => rest.split_once(')').ok_or(missing)?,
        None => ("1", head),
    };
    let (name, parameters) = head.split_once('(').ok_or(missing)?;
    let (parameters, _) = parameters.split_once(") {").ok_or(missing)?;
    let arguments = parameters.split(',').enumerate().map(|(n, parameter)| {
        let kind = parameter
            .replace("__restrict__", "")
            .replace("__grid_constant__", "");
        let kind = kind
            .trim()
            .rsplit_once(char::is_whitespace)
            .map_or("", |(kind, _)| kind);
        match parameter.contains("info_st") {
            true => "*(const info_st *)sim_info".to_string(),
            false => format!("({kind})sim_buffers[{n}]"),
        }
    });
    Ok(format!(
        "static void *const *sim_buffers;\nstatic const void *sim_info;\n\
         static void sim_entry() {{ {}({}); }}\n\
         extern \"C\" void sim_launch(void *const *buffers, const void *info, const unsigned *count, const unsigned *dim, \
         unsigned held, uint64_t seconds) {{\n\
         sim_buffers = buffers; sim_info = info;\n\
         sim::run({{count[0], count[1], count[2]}}, {{dim[0], dim[1], dim[2]}}, {}, sim_entry, held, sim::now() + seconds * 1000000000);\n}}\n",
        name.trim(),
        arguments.collect::<Vec<_>>().join(", "),
        cluster.replace(',', " *")
    ))
}
