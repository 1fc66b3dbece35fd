//! Modules as a GLSL compiler writes them: bindings in set 0, the operation in specialisation constant 0.

use rspirv::binary::Assemble;
use rspirv::dr::{Builder, Operand};
use rspirv::spirv::{
    AddressingModel, BuiltIn, Capability, Decoration, ExecutionMode, ExecutionModel, FunctionControl,
    MemoryModel, SelectionControl, StorageClass, Word,
};

/// A storage block of f32 at a binding: its variable, and the type of a pointer to an element.
fn block(b: &mut Builder, old: bool, f32: Word, binding: u32, read_only: bool) -> (Word, Word) {
    let class = if old { StorageClass::Uniform } else { StorageClass::StorageBuffer };
    let id = b.id();
    let array = b.type_runtime_array_id(Some(id), f32);
    b.decorate(array, Decoration::ArrayStride, [Operand::LiteralBit32(4)]);
    let id = b.id();
    let block = b.type_struct_id(Some(id), [array]);
    b.decorate(block, if old { Decoration::BufferBlock } else { Decoration::Block }, []);
    b.member_decorate(block, 0, Decoration::Offset, [Operand::LiteralBit32(0)]);
    if read_only {
        b.member_decorate(block, 0, Decoration::NonWritable, []);
    }
    let pointer = b.type_pointer(None, class, block);
    let variable = b.variable(pointer, None, class, None);
    b.decorate(variable, Decoration::DescriptorSet, [Operand::LiteralBit32(0)]);
    b.decorate(variable, Decoration::Binding, [Operand::LiteralBit32(binding)]);
    (variable, b.type_pointer(None, class, f32))
}

/// `out[i] = a[i] op b[i]` for `i < n`: a in binding 0, b in 1, out in 2, n in the push constants; operation 0 adds, 1
/// multiplies, others subtract. `old` is the style of SPIR-V 1.0.
pub(crate) fn elementwise(old: bool) -> Vec<u8> {
    let mut b = Builder::new();
    b.set_version(1, if old { 0 } else { 3 });
    b.capability(Capability::Shader);
    b.memory_model(AddressingModel::Logical, MemoryModel::GLSL450);
    let (void, bool) = (b.type_void(), b.type_bool());
    let (u32, f32) = (b.type_int(32, 0), b.type_float(32, None));
    let v3 = b.type_vector(u32, 3);
    let input = b.type_pointer(None, StorageClass::Input, v3);
    let index = b.variable(input, None, StorageClass::Input, None);
    b.decorate(index, Decoration::BuiltIn, [Operand::BuiltIn(BuiltIn::GlobalInvocationId)]);
    let (a, element) = block(&mut b, old, f32, 0, true);
    let (c, _) = block(&mut b, old, f32, 1, true);
    let (out, _) = block(&mut b, old, f32, 2, false);
    let id = b.id();
    let sizes = b.type_struct_id(Some(id), [u32]);
    b.decorate(sizes, Decoration::Block, []);
    b.member_decorate(sizes, 0, Decoration::Offset, [Operand::LiteralBit32(0)]);
    let push = b.type_pointer(None, StorageClass::PushConstant, sizes);
    let push = b.variable(push, None, StorageClass::PushConstant, None);
    let push_element = b.type_pointer(None, StorageClass::PushConstant, u32);
    let op = b.spec_constant_bit32(u32, 0);
    b.decorate(op, Decoration::SpecId, [Operand::LiteralBit32(0)]);
    let (zero, one) = (b.constant_bit32(u32, 0), b.constant_bit32(u32, 1));
    let function = b.type_function(void, []);
    let main = b.begin_function(void, None, FunctionControl::NONE, function).unwrap();
    b.begin_block(None).unwrap();
    let index = {
        let at = b.load(v3, None, index, None, []).unwrap();
        (index, b.composite_extract(u32, None, at, [0]).unwrap())
    };
    let (interface, i) = index;
    let n = b.access_chain(push_element, None, push, [zero]).unwrap();
    let n = b.load(u32, None, n, None, []).unwrap();
    let inside = b.u_less_than(bool, None, i, n).unwrap();
    let (work, end) = (b.id(), b.id());
    b.selection_merge(end, SelectionControl::NONE).unwrap();
    b.branch_conditional(inside, work, end, []).unwrap();
    b.begin_block(Some(work)).unwrap();
    let mut load = |variable| {
        let at = b.access_chain(element, None, variable, [zero, i]).unwrap();
        b.load(f32, None, at, None, []).unwrap()
    };
    let (x, y) = (load(a), load(c));
    let sum = b.f_add(f32, None, x, y).unwrap();
    let product = b.f_mul(f32, None, x, y).unwrap();
    let difference = b.f_sub(f32, None, x, y).unwrap();
    let (is_zero, is_one) =
        (b.i_equal(bool, None, op, zero).unwrap(), b.i_equal(bool, None, op, one).unwrap());
    let other = b.select(f32, None, is_one, product, difference).unwrap();
    let result = b.select(f32, None, is_zero, sum, other).unwrap();
    let at = b.access_chain(element, None, out, [zero, i]).unwrap();
    b.store(at, result, None, []).unwrap();
    b.branch(end).unwrap();
    b.begin_block(Some(end)).unwrap();
    b.ret().unwrap();
    b.end_function().unwrap();
    b.entry_point(ExecutionModel::GLCompute, main, "main", [interface]);
    b.execution_mode(main, ExecutionMode::LocalSize, [64, 1, 1]);
    b.module().assemble().iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// `out[row] = Σ √x[row, c]` over the columns of each row, one workgroup of 64 to a row: loops, a function, a function of
/// GLSL.std.450, workgroup memory and a barrier. x is in binding 0, out in 1, the number of columns in the push constants.
pub(crate) fn row_sums() -> Vec<u8> {
    let mut b = Builder::new();
    b.set_version(1, 3);
    b.capability(Capability::Shader);
    let glsl = b.ext_inst_import("GLSL.std.450");
    b.memory_model(AddressingModel::Logical, MemoryModel::GLSL450);
    let (void, bool) = (b.type_void(), b.type_bool());
    let (u32, f32) = (b.type_int(32, 0), b.type_float(32, None));
    let v3 = b.type_vector(u32, 3);
    let input = b.type_pointer(None, StorageClass::Input, v3);
    let mut built_in = |builtin| {
        let variable = b.variable(input, None, StorageClass::Input, None);
        b.decorate(variable, Decoration::BuiltIn, [Operand::BuiltIn(builtin)]);
        variable
    };
    let (local, group) = (built_in(BuiltIn::LocalInvocationId), built_in(BuiltIn::WorkgroupId));
    let (x, element) = block(&mut b, false, f32, 0, true);
    let (out, _) = block(&mut b, false, f32, 1, false);
    let id = b.id();
    let sizes = b.type_struct_id(Some(id), [u32]);
    b.decorate(sizes, Decoration::Block, []);
    b.member_decorate(sizes, 0, Decoration::Offset, [Operand::LiteralBit32(0)]);
    let push = b.type_pointer(None, StorageClass::PushConstant, sizes);
    let push = b.variable(push, None, StorageClass::PushConstant, None);
    let push_element = b.type_pointer(None, StorageClass::PushConstant, u32);
    let (zero, one, threads) =
        (b.constant_bit32(u32, 0), b.constant_bit32(u32, 1), b.constant_bit32(u32, 64));
    let (workgroup, acquire_release) = (b.constant_bit32(u32, 2), b.constant_bit32(u32, 0x108));
    let nothing = b.constant_bit32(f32, 0);
    let array = b.type_array(f32, threads);
    let shared = b.type_pointer(None, StorageClass::Workgroup, array);
    let shared = b.variable(shared, None, StorageClass::Workgroup, None);
    let shared_element = b.type_pointer(None, StorageClass::Workgroup, f32);

    let unary = b.type_function(f32, [f32]);
    let root = b.begin_function(f32, None, FunctionControl::NONE, unary).unwrap();
    let argument = b.function_parameter(f32).unwrap();
    b.begin_block(None).unwrap();
    let square_root = b.ext_inst(f32, None, glsl, 31, [Operand::IdRef(argument)]).unwrap();
    b.ret_value(square_root).unwrap();
    b.end_function().unwrap();

    let function = b.type_function(void, []);
    let main = b.begin_function(void, None, FunctionControl::NONE, function).unwrap();
    let start = b.begin_block(None).unwrap();
    let mut first = |variable| {
        let all = b.load(v3, None, variable, None, []).unwrap();
        b.composite_extract(u32, None, all, [0]).unwrap()
    };
    let (thread, row) = (first(local), first(group));
    let columns = b.access_chain(push_element, None, push, [zero]).unwrap();
    let columns = b.load(u32, None, columns, None, []).unwrap();
    let base = b.i_mul(u32, None, row, columns).unwrap();
    // Sums the terms of a loop from `from` to `to`; ends in the block after it.
    let sum = |b: &mut Builder,
               before: Word,
               from: Word,
               to: Word,
               step: Word,
               term: &mut dyn FnMut(&mut Builder, Word) -> Word| {
        let [header, test, body, next, done] = std::array::from_fn(|_| b.id());
        let (at, total, next_at, next_total) = (b.id(), b.id(), b.id(), b.id());
        b.branch(header).unwrap();
        b.begin_block(Some(header)).unwrap();
        b.phi(u32, Some(at), [(from, before), (next_at, next)]).unwrap();
        b.phi(f32, Some(total), [(nothing, before), (next_total, next)]).unwrap();
        b.loop_merge(done, next, rspirv::spirv::LoopControl::NONE, []).unwrap();
        b.branch(test).unwrap();
        b.begin_block(Some(test)).unwrap();
        let inside = b.u_less_than(bool, None, at, to).unwrap();
        b.branch_conditional(inside, body, done, []).unwrap();
        b.begin_block(Some(body)).unwrap();
        let term = term(b, at);
        b.f_add(f32, Some(next_total), total, term).unwrap();
        b.branch(next).unwrap();
        b.begin_block(Some(next)).unwrap();
        b.i_add(u32, Some(next_at), at, step).unwrap();
        b.branch(header).unwrap();
        b.begin_block(Some(done)).unwrap();
        total
    };
    let own = sum(&mut b, start, thread, columns, threads, &mut |b, at| {
        let at = b.i_add(u32, None, base, at).unwrap();
        let at = b.access_chain(element, None, x, [zero, at]).unwrap();
        let x = b.load(f32, None, at, None, []).unwrap();
        b.function_call(f32, None, root, [x]).unwrap()
    });
    let mine = b.access_chain(shared_element, None, shared, [thread]).unwrap();
    b.store(mine, own, None, []).unwrap();
    b.control_barrier(workgroup, workgroup, acquire_release).unwrap();
    let is_first = b.i_equal(bool, None, thread, zero).unwrap();
    let (work, end) = (b.id(), b.id());
    b.selection_merge(end, SelectionControl::NONE).unwrap();
    b.branch_conditional(is_first, work, end, []).unwrap();
    b.begin_block(Some(work)).unwrap();
    let all = sum(&mut b, work, zero, threads, one, &mut |b, at| {
        let at = b.access_chain(shared_element, None, shared, [at]).unwrap();
        b.load(f32, None, at, None, []).unwrap()
    });
    let at = b.access_chain(element, None, out, [zero, row]).unwrap();
    b.store(at, all, None, []).unwrap();
    b.branch(end).unwrap();
    b.begin_block(Some(end)).unwrap();
    b.ret().unwrap();
    b.end_function().unwrap();
    b.entry_point(ExecutionModel::GLCompute, main, "main", [local, group]);
    b.execution_mode(main, ExecutionMode::LocalSize, [64, 1, 1]);
    b.module().assemble().iter().flat_map(|word| word.to_le_bytes()).collect()
}
