//! Kernels as data: declarations, values in single assignment, and structured statements.

use std::hash::{Hash, Hasher};

use crate::foreign::Foreign;
use crate::types::{Elem, MatrixType, Scalar, Type};
use crate::warpgroup::WarpgroupStmt;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);

        impl $name {
            /// Position in the kernel's list.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

handles! {
    /// A value of [`Kernel::values`].
    Value,
    /// A buffer of [`Kernel::args`].
    ArgId,
    /// A number of [`Kernel::params`].
    ParamId,
    /// An array of [`Kernel::shared`].
    SharedId,
    /// A variable of [`Kernel::vars`].
    VarId,
}

/// What a kernel does with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Access {
    Read,
    Write,
    ReadWrite,
}

impl Access {
    /// Whether the kernel may load from it.
    pub const fn reads(self) -> bool {
        matches!(self, Access::Read | Access::ReadWrite)
    }

    /// Whether the kernel may store to it.
    pub const fn writes(self) -> bool {
        matches!(self, Access::Write | Access::ReadWrite)
    }
}

/// A buffer argument.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ArgDecl {
    /// For printed kernels and reports.
    pub name: String,
    /// Element type.
    pub elem: Elem,
    /// What the kernel does with it.
    pub access: Access,
    /// Whether caches need not keep what is loaded or stored: nothing uses it again soon. A hint, which PTX has words for.
    pub streaming: bool,
}

/// A run-time number, 32 bits wide, the same for the whole dispatch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ParamDecl {
    /// For printed kernels.
    pub name: String,
    /// u32, i32 or f32.
    pub scalar: Scalar,
}

/// An array in workgroup memory: `len` elements of `lanes` scalars each. Not initialised.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SharedDecl {
    /// What a scalar is stored as; f32, u32, i32, and f16 or 64-bit types where the target has them.
    pub elem: Elem,
    /// 1, 2 or 4 scalars to an element.
    pub lanes: u8,
    /// Elements.
    pub len: u32,
}

impl SharedDecl {
    /// Bytes it takes.
    pub const fn bytes(&self) -> u32 {
        self.elem.size() * self.lanes as u32 * self.len
    }
}

/// Where an invocation stands; all u32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Builtin {
    /// Workgroup's position in the grid, by dimension.
    GroupId(u8),
    /// Size of the grid in workgroups, by dimension.
    GroupCount(u8),
    /// Position inside the workgroup, flattened.
    LocalIndex,
    /// Position inside the subgroup.
    Lane,
    /// The subgroup's position inside the workgroup.
    SubgroupId,
}

/// Operations of one operand; the result has its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the operations")]
pub enum UnaryOp {
    Neg,
    /// Logical on bool, bitwise on integers.
    Not,
    Abs,
    Floor,
    Ceil,
    Trunc,
    /// Half to even.
    RoundEven,
    /// The device's square root, within a few ulp.
    Sqrt,
    /// The device's reciprocal square root, within a few ulp.
    InverseSqrt,
    /// The device's 2^x (f32 and f16), within 3 + 2|x| ulp.
    Exp2,
    /// The device's log2 (f32 and f16).
    Log2,
    /// The device's sine (f32 and f16), absolute error 2^-11 on [-pi, pi].
    Sin,
    /// The device's cosine, likewise.
    Cos,
    /// Number of set bits (32-bit integers).
    CountOnes,
    /// Number of zero bits above the highest set one (u32); 32 for 0.
    LeadingZeros,
}

/// Operations of two operands of one type; the result has it too. Integers wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the operations")]
pub enum BinaryOp {
    Add,
    Sub,
    Mul,
    /// Integers truncate; the divisor must not be zero (nor the least integer be divided by -1).
    Div,
    /// Truncated remainder of integers; not on floats.
    Rem,
    /// With NaN operands it is an unspecified one of the two.
    Min,
    /// With NaN operands it is an unspecified one of the two.
    Max,
    And,
    Or,
    Xor,
    /// The count (of the operand's own type) must be below the width.
    Shl,
    /// Arithmetic on signed integers, logical on unsigned.
    Shr,
    /// The upper half of a u32 product.
    MulHigh,
}

/// Comparisons of two operands of one type; ordered on floats except `Ne`, which is true for NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the operations")]
pub enum CompareOp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// Operations among the lanes of a subgroup; all of its lanes must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the operations")]
pub enum SubgroupOp {
    Add,
    Min,
    Max,
    /// Sum over the lanes up to and with this one.
    InclusiveAdd,
    /// Sum over the lanes before this one.
    ExclusiveAdd,
    /// Of bool: whether any lane says true.
    Any,
    /// Of bool: whether all lanes say true.
    All,
    /// The value of the lane whose number is this one's xor the second operand (a constant u32).
    ShuffleXor,
    /// The value of the lane that the second operand (u32) names.
    Shuffle,
}

/// Read-modify-write on a u32 or i32 in memory; returns the value before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the operations")]
pub enum AtomicOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exchange,
    /// Stores the value if memory holds the comparand.
    CompareExchange,
}

/// Memory that indices address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Storage {
    /// A buffer; the index counts elements.
    Arg(ArgId),
    /// A workgroup array; the index counts its elements of `lanes` scalars.
    Shared(SharedId),
}

/// The layout of a cooperative matrix in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixLayout {
    /// Elements (as the storage counts them) from one row, or column, to the next.
    pub stride: Value,
    /// Whether columns are contiguous instead of rows.
    pub column_major: bool,
}

/// What a value is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expr {
    /// A number; its bits, zero-extended.
    Const(Scalar, u64),
    /// Where the invocation stands.
    Builtin(Builtin),
    /// A run-time number.
    Param(ParamId),
    /// The counter of the `For` it belongs to.
    Counter,
    /// A variable's value now.
    Get(VarId),
    /// One operand.
    Unary(UnaryOp, Value),
    /// Two operands.
    Binary(BinaryOp, Value, Value),
    /// a·b + c rounded once where the device can; floats.
    Fma(Value, Value, Value),
    /// A comparison, bool.
    Compare(CompareOp, Value, Value),
    /// The second where the first is true, else the third.
    Select(Value, Value, Value),
    /// Between scalar types. Float to integer truncates (out of range: unspecified); to a narrower float rounds to
    /// nearest even where the device can; integers keep their low bits; bool becomes 0 or 1, and anything becomes
    /// bool by comparing with 0.
    Convert(Scalar, Value),
    /// The same bits as another scalar type of the same width.
    Bitcast(Scalar, Value),
    /// The same f32 or f64, which no compiler may look through: sums and products around it stay as they are written.
    Opaque(Value),
    /// The low and high word of a 64-bit value made one (u64).
    Join(Value, Value),
    /// Two f32 rounded to f16 and packed in a u32, the first in the low half.
    PackHalf(Value, Value),
    /// The f16 in the low (0) or high (1) half of a u32, as f32.
    UnpackHalf(Value, u8),
    /// A vector of scalars.
    Vector(Vec<Value>),
    /// A vector's component.
    Extract(Value, u8),
    /// `lanes` elements from `index` on (u32; on pointer targets u64 too); a vector when `lanes` > 1, which then must
    /// be aligned to its own size. From a shared array: one of its elements, `lanes` being the array's.
    Load {
        /// Memory.
        place: Storage,
        /// Which element.
        index: Value,
        /// 1, 2 or 4.
        lanes: u8,
    },
    /// One scalar of a shared array's vector element.
    LoadLane {
        /// The array.
        shared: SharedId,
        /// Which element.
        index: Value,
        /// Which scalar of it.
        lane: u8,
    },
    /// A load whose index is the same in the whole workgroup and whose memory nothing writes during the dispatch, so
    /// that the value may steer loops around barriers.
    LoadUniform {
        /// The buffer.
        arg: ArgId,
        /// Which element.
        index: Value,
    },
    /// Read-modify-write; a statement even when nobody uses its value.
    Atomic {
        /// Memory: u32 or i32 elements.
        place: Storage,
        /// Which element.
        index: Value,
        /// What to do.
        op: AtomicOp,
        /// The operand.
        value: Value,
        /// For `CompareExchange`.
        comparand: Option<Value>,
    },
    /// Among the lanes of a subgroup.
    Subgroup(SubgroupOp, Value, Option<Value>),
    /// Sum of four products of 8-bit integers packed in u32 or i32, plus an accumulator (i32, or u32 if unsigned).
    PackedDot {
        /// Whether the packed integers are signed.
        signed: bool,
        /// Four integers.
        a: Value,
        /// Four integers.
        b: Value,
        /// The sum so far.
        accumulator: Value,
    },
    /// A cooperative matrix with one number everywhere.
    MatrixSplat(MatrixType, Value),
    /// A cooperative matrix from memory; the index is of its first element.
    MatrixLoad {
        /// Its type.
        ty: MatrixType,
        /// Memory.
        place: Storage,
        /// First element.
        index: Value,
        /// Rows or columns in memory.
        layout: MatrixLayout,
    },
    /// a·b + c.
    MatrixMulAdd(Value, Value, Value),
    /// The elements of one matrix times a number, or plus another matrix's: `Mul` or `Add`.
    MatrixBinary(BinaryOp, Value, Value),
    /// A cooperative matrix of 16-bit elements from the words that each lane holds of it, as [`Expr::MatrixWord`] gives
    /// them.
    MatrixOfWords(MatrixType, Vec<Value>),
    /// The i-th word that a lane holds of a cooperative matrix of 16-bit elements. Which elements these are is the
    /// device's secret, the same for all matrices of a type.
    MatrixWord(Value, u8),
    /// The element of a matrix that this invocation holds as its i-th, in its register type; which one that is
    /// [`Fragments`](crate::Fragments) says.
    MatrixPart(Value, u8),
    /// A matrix of the elements that the invocations hold, in order.
    MatrixOf(MatrixType, Vec<Value>),
}

/// A value with its type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Def {
    /// What it is.
    pub expr: Expr,
    /// Its type.
    pub ty: Type,
}

/// Statements in order.
pub type Block = Vec<Stmt>;

/// What an invocation does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Stmt {
    /// Computes a value; it may be used by later statements of the block and blocks inside them.
    Let(Value),
    /// Sets a variable.
    Set(VarId, Value),
    /// Stores a scalar or a vector; alignment as for loads.
    Store {
        /// Memory.
        place: Storage,
        /// Which element.
        index: Value,
        /// What.
        value: Value,
    },
    /// Stores one scalar of a shared array's vector element.
    StoreLane {
        /// The array.
        shared: SharedId,
        /// Which element.
        index: Value,
        /// Which scalar of it.
        lane: u8,
        /// What.
        value: Value,
    },
    /// Stores a cooperative matrix.
    StoreMatrix {
        /// Memory.
        place: Storage,
        /// First element.
        index: Value,
        /// Rows or columns in memory.
        layout: MatrixLayout,
        /// What.
        value: Value,
    },
    /// One of two blocks.
    If {
        /// bool.
        condition: Value,
        /// When true.
        then: Block,
        /// When false.
        otherwise: Block,
    },
    /// `counter` from `start` while below `end`, by `step`; all u32 or all i32.
    For {
        /// The value that holds the counter ([`Expr::Counter`]).
        counter: Value,
        /// First.
        start: Value,
        /// One past the last.
        end: Value,
        /// Above zero.
        step: Value,
        /// The body.
        body: Block,
    },
    /// Computes `head`, and while `condition` (a value of `head`) holds runs `body` and begins again.
    While {
        /// Computed before every round.
        head: Block,
        /// bool.
        condition: Value,
        /// The round.
        body: Block,
    },
    /// All invocations of the workgroup arrive before any goes on, and see each other's stores to workgroup memory
    /// and to buffers.
    Barrier,
    /// The same for one subgroup.
    SubgroupBarrier,
    /// An invocation's accesses to buffers before it come before those after it, for all workgroups of the dispatch: who sees an atomic
    /// operation that came after it, and passes one of its own, sees the stores that came before. It waits for nobody.
    DeviceFence,
    /// In checked kernels, reports an index of the user's data that is out of range; otherwise nothing. The first
    /// report of a run stays.
    Report {
        /// u32: where the index stands in its operand.
        position: Value,
        /// i32 or i64: the index.
        value: Value,
        /// u32: what it must stay below.
        size: Value,
    },
    /// Of devices with warpgroups.
    Warpgroup(WarpgroupStmt),
    /// In checked kernels, reports an access to a buffer unless its index is below the size; otherwise nothing.
    CheckAccess {
        /// The buffer.
        arg: ArgId,
        /// u32: the index.
        index: Value,
        /// u32: elements of the buffer.
        size: Value,
    },
}

/// A kernel: what a dispatch runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// For debug labels, profiles and printed kernels.
    pub name: String,
    /// Invocations of a workgroup, one-dimensional.
    pub group: u32,
    /// Buffers.
    pub args: Vec<ArgDecl>,
    /// Run-time numbers.
    pub params: Vec<ParamDecl>,
    /// Workgroup arrays.
    pub shared: Vec<SharedDecl>,
    /// Types of variables.
    pub vars: Vec<Type>,
    /// Values.
    pub values: Vec<Def>,
    /// What it does.
    pub body: Block,
    /// Finished code instead of a body.
    pub foreign: Option<Foreign>,
}

impl Kernel {
    /// A value's type.
    pub fn ty(&self, value: Value) -> Type {
        self.values[value.index()].ty
    }

    /// Bytes of workgroup memory.
    pub fn shared_bytes(&self) -> u32 {
        self.shared.iter().map(|s| s.bytes().next_multiple_of(16)).sum()
    }

    /// A hash of the content, the same in every process of one build: the key of pipelines.
    pub fn content_hash(&self) -> u128 {
        let mut low = Fnv(0xcbf2_9ce4_8422_2325);
        let mut high = Fnv(0x9e37_79b9_7f4a_7c15);
        self.hash(&mut low);
        self.hash(&mut high);
        (u128::from(high.finish()) << 64) | u128::from(low.finish())
    }
}

/// FNV-1a with a final mix: stable between processes, unlike the standard library's hasher.
struct Fnv(u64);

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    fn finish(&self) -> u64 {
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}
