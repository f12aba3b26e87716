//! Actions on fields: set, load, move, the stack. What they read and write is in the mask.

use super::ctx::Ctx;
use super::limits::MAX_STACK_BYTES;
use super::report::{Kind, hex};
use heddle_flow::{FieldId, FieldValue, Subfield};

impl Ctx<'_> {
    /// Writes the bits of `mask` of a field, if the packet has it.
    pub(super) fn set_field(&mut self, field: FieldId, value: FieldValue, mask: FieldValue) {
        if !self.has_field(field) {
            let name = field.name();
            self.report(Kind::Warn, || {
                format!("unmet prerequisites for {name}, set_field ignored")
            });
            return;
        }
        self.mask_l3_prereqs(field);
        field.set_mask(&mut self.wc, mask);
        field.set_masked(&mut self.flow, value, mask);
    }

    /// `load:value->dst`.
    pub(super) fn load(&mut self, dst: Subfield, value: u64) {
        self.set_field(dst.field, dst.place(FieldValue::from_u64(value)), dst.mask());
    }

    /// `move:src->dst`. Source and destination may overlap.
    pub(super) fn move_field(&mut self, src: Subfield, dst: Subfield) {
        if self.has_field(dst.field) && self.has_field(src.field) {
            src.add_mask(&mut self.wc);
            dst.add_mask(&mut self.wc);
            let value = src.get(&self.flow);
            dst.set(&mut self.flow, value);
        }
        self.report_subfield(dst);
    }

    /// `push:src`.
    pub(super) fn stack_push(&mut self, src: Subfield) {
        src.add_mask(&mut self.wc);
        self.stack.push((src.get(&self.flow), src.n_bits));
    }

    /// `pop:dst`.
    pub(super) fn stack_pop(&mut self, dst: Subfield) {
        if let Some((value, _)) = self.stack.pop() {
            dst.add_mask(&mut self.wc);
            dst.set(&mut self.flow, value);
            self.report_subfield(dst);
        } else {
            self.report_error(|| "stack underflow".to_owned());
        }
    }

    /// Whether the stack has grown too large: each value takes its bytes and one more.
    pub(super) fn stack_is_full(&self) -> bool {
        // A value takes at least two bytes: no need to add up a short stack.
        self.stack.len() > MAX_STACK_BYTES / 17
            && self
                .stack
                .iter()
                .map(|(_, bits)| usize::from(*bits).div_ceil(8) + 1)
                .sum::<usize>()
                >= MAX_STACK_BYTES
    }

    /// Writes a number that was made up, and says so.
    pub(super) fn write_number(&mut self, dst: Subfield, value: u64) {
        dst.add_mask(&mut self.wc);
        dst.set(&mut self.flow, FieldValue::from_u64(value));
        self.report_subfield(dst);
    }

    fn report_subfield(&mut self, sf: Subfield) {
        if self.report.is_none() {
            return;
        }
        let mut text = String::new();
        if sf == Subfield::all(sf.field) {
            // Writing to a string does not fail.
            let _ =
                heddle_flow::text::format_value(&mut text, sf.field, sf.field.get(&self.flow), None, None);
        } else {
            text = hex(sf.get(&self.flow).as_u128());
        }
        self.report(Kind::Detail, || format!("{sf} is now {text}"));
    }
}
