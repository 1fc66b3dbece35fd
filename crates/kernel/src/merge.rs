//! Arguments made one: for devices that refuse the same bytes in two bindings of a dispatch.

use crate::ir::*;
use crate::warpgroup::WarpgroupStmt;

impl Kernel {
    /// The kernel with some of its buffers made one with earlier ones. `same_as` has for every buffer the position of the
    /// one whose bytes it is bound to, its own where that is none other. Both are of one element type, and only read.
    #[must_use]
    pub fn with_merged_args(&self, same_as: &[usize]) -> Kernel {
        let first = |i: usize| same_as.get(i).is_none_or(|same| *same == i);
        // Where each buffer is among those that are left.
        let mut places: Vec<u32> = Vec::with_capacity(self.args.len());
        let mut left = 0;
        for i in 0..self.args.len() {
            let earlier = same_as.get(i).and_then(|same| places.get(*same)).copied();
            places.push(earlier.filter(|_| !first(i)).unwrap_or(left));
            left += u32::from(first(i));
        }
        let mut merged = self.clone();
        let mut at = 0..;
        merged.args.retain(|_| at.next().is_some_and(first));
        let moved = |arg: &mut ArgId| arg.0 = places.get(arg.index()).copied().unwrap_or(arg.0);
        for def in &mut merged.values {
            match &mut def.expr {
                Expr::Load { place: Storage::Arg(arg), .. }
                | Expr::Atomic { place: Storage::Arg(arg), .. }
                | Expr::MatrixLoad { place: Storage::Arg(arg), .. }
                | Expr::LoadUniform { arg, .. } => moved(arg),
                _ => {}
            }
        }
        rename(&mut merged.body, &moved);
        merged
    }
}

fn rename(block: &mut Block, moved: &impl Fn(&mut ArgId)) {
    for stmt in block {
        match stmt {
            Stmt::Store { place: Storage::Arg(arg), .. }
            | Stmt::StoreMatrix { place: Storage::Arg(arg), .. }
            | Stmt::CheckAccess { arg, .. } => moved(arg),
            Stmt::If { then, otherwise, .. } => {
                rename(then, moved);
                rename(otherwise, moved);
            }
            Stmt::For { body, .. } => rename(body, moved),
            Stmt::Warpgroup(WarpgroupStmt::Copy { arg, .. } | WarpgroupStmt::Prefetch { arg, .. }) => {
                moved(arg);
            }
            Stmt::Warpgroup(WarpgroupStmt::Roles(roles)) => {
                roles.iter_mut().for_each(|role| rename(&mut role.body, moved));
            }
            Stmt::While { head, body, .. } => {
                rename(head, moved);
                rename(body, moved);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Access, Builder, Elem, Target, validate};

    #[test]
    fn merged_buffers_are_read_in_the_place_of_the_first() {
        let k = Builder::new("sum", 32, &Target::plain());
        let [a, b, c] = ["a", "b", "c"].map(|name| k.arg(name, Elem::F32, Access::Read));
        let out = k.arg("out", Elem::F32, Access::Write);
        let i = k.local_index();
        out.store(i, a.load(i) + b.load(i) * c.load(i));
        let kernel = k.finish().unwrap_or_else(|e| panic!("{e}"));
        let merged = kernel.with_merged_args(&[0, 1, 0, 3]);
        let names: Vec<&str> = merged.args.iter().map(|arg| arg.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "out"]);
        validate(&merged, &Target::plain()).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(kernel.with_merged_args(&[0, 1, 2, 3]), kernel);
    }
}
