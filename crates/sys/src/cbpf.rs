//! Classic BPF programs (linux/filter.h), as packet sockets and classifiers take them.
//!
//! [`Assembler`] writes programs with labels. A conditional jump reaches at most 255 instructions, so a jump
//! to a label is an unconditional one, which a condition skips.

/// Maximum number of instructions that the kernel takes.
pub(crate) const MAX_OPS: usize = 4096;

pub(crate) const LD_IMM: u16 = 0x00;
pub(crate) const LD_W_ABS: u16 = 0x20;
pub(crate) const LD_H_ABS: u16 = 0x28;
pub(crate) const LD_B_ABS: u16 = 0x30;
pub(crate) const LD_H_IND: u16 = 0x48;
pub(crate) const LD_B_IND: u16 = 0x50;
pub(crate) const LD_MEM: u16 = 0x60;
/// Loads X with the length of the IPv4 header at a place.
pub(crate) const LDX_MSH: u16 = 0xb1;
pub(crate) const ST: u16 = 0x02;
pub(crate) const AND: u16 = 0x54;
pub(crate) const OR_X: u16 = 0x4c;
pub(crate) const XOR_X: u16 = 0xac;
pub(crate) const LSH: u16 = 0x64;
pub(crate) const TAX: u16 = 0x07;
pub(crate) const JA: u16 = 0x05;
pub(crate) const JEQ: u16 = 0x15;
pub(crate) const JGE: u16 = 0x35;
pub(crate) const JSET: u16 = 0x45;
pub(crate) const RET: u16 = 0x06;

/// Places of a frame's properties besides its bytes.
const ANCILLARY: u32 = 0xffff_f000;
/// The receiver: 0 is this host (`PACKET_HOST`).
pub(crate) const PACKET_TYPE: u32 = ANCILLARY + 4;
pub(crate) const VLAN_TAG: u32 = ANCILLARY + 44;
pub(crate) const VLAN_TAG_PRESENT: u32 = ANCILLARY + 48;
/// Bits of [`VLAN_TAG`] that are the VLAN's id.
pub(crate) const VID_MASK: u32 = 0xfff;
pub(crate) const VLAN_TPID: u32 = ANCILLARY + 60;

/// An instruction: code, jumps if true and if not, value.
pub(crate) type Op = (u16, u8, u8, u32);

/// A place in a program, which may come later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Label(usize);

/// See the module's text.
#[derive(Default)]
pub(crate) struct Assembler {
    ops: Vec<Op>,
    /// Index of each label's instruction, once that is known.
    labels: Vec<Option<usize>>,
    /// Indices of jumps, and their labels.
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    pub(crate) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }
    /// The label is at the next instruction.
    pub(crate) fn here(&mut self, label: Label) {
        self.labels[label.0] = Some(self.ops.len());
    }
    pub(crate) fn op(&mut self, code: u16, value: u32) {
        self.ops.push((code, 0, 0, value));
    }
    /// A conditional jump over the next `yes` or `no` instructions.
    pub(crate) fn skip(&mut self, code: u16, value: u32, yes: u8, no: u8) {
        self.ops.push((code, yes, no, value));
    }
    pub(crate) fn jump(&mut self, to: Label) {
        self.jumps.push((self.ops.len(), to));
        self.op(JA, 0);
    }
    pub(crate) fn jump_if(&mut self, code: u16, value: u32, to: Label) {
        self.skip(code, value, 0, 1);
        self.jump(to);
    }
    pub(crate) fn jump_unless(&mut self, code: u16, value: u32, to: Label) {
        self.skip(code, value, 1, 0);
        self.jump(to);
    }
    /// The program. `None`: it is too long.
    pub(crate) fn finish(mut self) -> Option<Vec<Op>> {
        for (at, label) in self.jumps {
            let to = self.labels[label.0]?;
            // Jumps lead forwards only.
            self.ops[at].3 = u32::try_from(to.checked_sub(at + 1)?).ok()?;
        }
        (self.ops.len() <= MAX_OPS).then_some(self.ops)
    }
}
