//! Actions on fields: set, load, move, the stack. The mask gets the bits that they read and write.

use super::ctx::Ctx;
use super::report::{Kind, hex};
use heddle_flow::{FieldId, FieldValue, Subfield};
use heddle_openflow::action::SetTunMetadata;
use heddle_openflow::message::StackValue;
use smallvec::SmallVec;

impl Ctx<'_> {
    /// Writes the bits of `mask` of a field, if the packet has it.
    pub(super) fn set_field(&mut self, field: FieldId, value: FieldValue, mask: FieldValue) {
        if !self.has_field(field) {
            let name = field.name();
            self.trace.report(Kind::Warn, || {
                format!("unmet prerequisites for {name}, set_field ignored")
            });
            return;
        }
        self.mask_l3_prereqs(field);
        field.set_mask(&mut self.out.mask, mask);
        field.set_masked(&mut self.flow, value, mask);
    }

    /// `load:value->dst`.
    pub(super) fn load(&mut self, dst: Subfield, value: u64) {
        if let FieldId::TunMetadata(_) = dst.field {
            dst.add_mask(&mut self.out.mask);
            dst.set(&mut self.flow, FieldValue::from_u64(value));
            return;
        }
        self.set_field(dst.field, dst.place(FieldValue::from_u64(value)), dst.mask());
    }

    /// `set_field` of a wide option of a tunnel.
    pub(super) fn set_tun_metadata(&mut self, set: &SetTunMetadata) {
        set.field.put_masked(&mut self.out.mask.0, &set.mask, &set.mask);
        set.field.put_masked(&mut self.flow, &set.value, &set.mask);
    }

    /// `delete_field`, which only options of tunnels support.
    pub(super) fn delete_field(&mut self, field: FieldId) {
        if let FieldId::TunMetadata(option) = field {
            // Packets with the option must not share an entry with packets without it.
            self.out.extra().0.tun_present = u64::MAX;
            option.remove(&mut self.flow);
            self.trace
                .report(Kind::Detail, || format!("delete {}", field.name()));
        }
    }

    /// `move:src->dst`. Source and destination may overlap.
    pub(super) fn move_field(&mut self, src: Subfield, dst: Subfield) {
        if self.has_field(dst.field) && self.has_field(src.field) {
            match (src.run(), dst.run()) {
                (Some(from), Some(to)) => {
                    from.count(&mut self.out.mask);
                    to.count(&mut self.out.mask);
                    let value = from.get(&self.flow);
                    to.set(&mut self.flow, value);
                }
                _ => self.move_pieces(src, dst),
            }
        }
        self.report_subfield(dst);
    }
    fn move_pieces(&mut self, src: Subfield, dst: Subfield) {
        src.pieces()
            .chain(dst.pieces())
            .for_each(|piece| piece.add_mask(&mut self.out.mask));
        // All pieces are read before any is written.
        let pieces: SmallVec<[_; 1]> = src
            .pieces()
            .map(|piece| piece.get(&self.flow))
            .zip(dst.pieces())
            .collect();
        for (value, piece) in pieces {
            piece.set(&mut self.flow, value);
        }
    }

    /// `push:src`.
    pub(super) fn stack_push(&mut self, src: Subfield) {
        src.pieces().for_each(|piece| piece.add_mask(&mut self.out.mask));
        self.at.stack.push(StackValue::read(src, &self.flow));
    }

    /// `pop:dst`.
    pub(super) fn stack_pop(&mut self, dst: Subfield) {
        if let Some(value) = self.at.stack.pop() {
            dst.pieces().for_each(|piece| piece.add_mask(&mut self.out.mask));
            value.write(dst, &mut self.flow);
            self.report_subfield(dst);
        } else {
            self.report_error(|| "stack underflow".to_owned());
        }
    }

    /// Writes a number that the switch computed, and reports it.
    pub(super) fn write_number(&mut self, dst: Subfield, value: u64) {
        dst.add_mask(&mut self.out.mask);
        dst.set(&mut self.flow, FieldValue::from_u64(value));
        self.report_subfield(dst);
    }

    fn report_subfield(&mut self, sf: Subfield) {
        if !self.trace.is_on() {
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
        self.trace.report(Kind::Detail, || format!("{sf} is now {text}"));
    }
}
