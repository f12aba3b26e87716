//! Every error: its name, and its numbers in each version.
//!
//! A row has the number pair of the error for a range of versions. For an experimenter's error of 1.2 and
//! later it has a single number. In a version without a row, the error has no number.

use super::Numbers::{self, Nx, NxPair, Of, Onf};

/// One range of versions (by wire byte, inclusive) and the numbers in it.
pub(super) type Range = (u8, u8, Numbers);

macro_rules! kinds {
    ($($kind:ident $name:literal $ranges:expr;)*) => {
        /// An error's meaning, independent of the version; named by the type and code of OpenFlow 1.3
        /// (or Nicira's).
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum ErrorKind {
            $(#[doc = concat!("`", $name, "`.")] $kind,)*
        }

        impl ErrorKind {
            /// All errors. If a version gives two errors the same numbers, the numbers decode to the earlier
            /// one here.
            pub const ALL: &'static [ErrorKind] = &[$(ErrorKind::$kind),*];

            /// The name in the specification.
            pub fn name(self) -> &'static str {
                match self { $(ErrorKind::$kind => $name,)* }
            }

            pub(super) fn ranges(self) -> &'static [Range] {
                match self { $(ErrorKind::$kind => $ranges,)* }
            }
        }
    };
}

kinds! {
    HelloFailedIncompatible "OFPHFC_INCOMPATIBLE" &[(1, 6, Of(0, 0))];
    HelloFailedEperm "OFPHFC_EPERM" &[(1, 6, Of(0, 1))];
    BadRequestBadVersion "OFPBRC_BAD_VERSION" &[(1, 6, Of(1, 0))];
    BadRequestBadType "OFPBRC_BAD_TYPE" &[(1, 6, Of(1, 1))];
    BadRequestBadStat "OFPBRC_BAD_STAT" &[(1, 6, Of(1, 2))];
    BadRequestBadVendor "OFPBRC_BAD_VENDOR" &[(1, 6, Of(1, 3))];
    BadRequestBadSubtype "OFPBRC_BAD_SUBTYPE" &[(1, 6, Of(1, 4))];
    BadRequestEperm "OFPBRC_EPERM" &[(1, 6, Of(1, 5))];
    BadRequestBadLen "OFPBRC_BAD_LEN" &[(1, 6, Of(1, 6))];
    BadRequestBufferEmpty "OFPBRC_BUFFER_EMPTY" &[(1, 6, Of(1, 7))];
    BadRequestBufferUnknown "OFPBRC_BUFFER_UNKNOWN" &[(1, 6, Of(1, 8))];
    BadRequestBadTableId "OFPBRC_BAD_TABLE_ID" &[(1, 1, NxPair(1, 512)), (2, 6, Of(1, 9))];
    BadRequestIsSecondary "OFPBRC_IS_SECONDARY" &[(1, 2, Of(1, 5)), (3, 6, Of(1, 10))];
    BadRequestBadPort "OFPBRC_BAD_PORT" &[(1, 2, NxPair(1, 514)), (3, 6, Of(1, 11))];
    BadRequestBadPacket "OFPBRC_BAD_PACKET" &[(3, 6, Of(1, 12))];
    BadRequestMultipartBufferOverflow "OFPBRC_MULTIPART_BUFFER_OVERFLOW" &[(4, 6, Of(1, 13))];
    BadRequestMultipartRequestTimeout "OFPBRC_MULTIPART_REQUEST_TIMEOUT" &[(4, 4, Onf(2640)), (5, 6, Of(1, 14))];
    BadRequestMultipartReplyTimeout "OFPBRC_MULTIPART_REPLY_TIMEOUT" &[(4, 4, Onf(2641)), (5, 6, Of(1, 15))];
    BadRequestMultipartBadSched "OFPBRC_MULTIPART_BAD_SCHED" &[(6, 6, Of(1, 16))];
    BadRequestPipelineFieldsOnly "OFPBRC_PIPELINE_FIELDS_ONLY" &[(6, 6, Of(1, 17))];
    BadRequestUnknown "OFPBRC_UNKNOWN" &[(6, 6, Of(1, 18))];
    BadRequestNxmInvalid "NXBRC_NXM_INVALID" &[(1, 2, NxPair(1, 256)), (3, 6, Nx(2))];
    BadRequestNxmBadType "NXBRC_NXM_BAD_TYPE" &[(1, 2, NxPair(1, 257)), (3, 6, Nx(3))];
    BadRequestMustBeZero "NXBRC_MUST_BE_ZERO" &[(1, 2, NxPair(1, 515)), (3, 6, Nx(4))];
    BadRequestBadReason "NXBRC_BAD_REASON" &[(1, 2, NxPair(1, 516)), (3, 6, Nx(5))];
    BadRequestFmBadEvent "NXBRC_FM_BAD_EVENT" &[(1, 2, NxPair(1, 520)), (3, 6, Nx(9))];
    BadRequestUnencodableError "NXBRC_UNENCODABLE_ERROR" &[(1, 2, NxPair(1, 521)), (3, 6, Nx(10))];
    BadActionBadType "OFPBAC_BAD_TYPE" &[(1, 6, Of(2, 0))];
    BadActionBadLen "OFPBAC_BAD_LEN" &[(1, 6, Of(2, 1))];
    BadActionBadVendor "OFPBAC_BAD_VENDOR" &[(1, 6, Of(2, 2))];
    BadActionBadVendorType "OFPBAC_BAD_VENDOR_TYPE" &[(1, 6, Of(2, 3))];
    BadActionBadOutPort "OFPBAC_BAD_OUT_PORT" &[(1, 6, Of(2, 4))];
    BadActionBadArgument "OFPBAC_BAD_ARGUMENT" &[(1, 6, Of(2, 5))];
    BadActionEperm "OFPBAC_EPERM" &[(1, 6, Of(2, 6))];
    BadActionTooMany "OFPBAC_TOO_MANY" &[(1, 6, Of(2, 7))];
    BadActionBadQueue "OFPBAC_BAD_QUEUE" &[(1, 6, Of(2, 8))];
    BadActionBadOutGroup "OFPBAC_BAD_OUT_GROUP" &[(1, 1, NxPair(2, 9)), (2, 6, Of(2, 9))];
    BadActionMatchInconsistent "OFPBAC_MATCH_INCONSISTENT" &[(1, 1, NxPair(1, 522)), (2, 6, Of(2, 10))];
    BadActionUnsupportedOrder "OFPBAC_UNSUPPORTED_ORDER" &[(2, 6, Of(2, 11))];
    BadActionBadTag "OFPBAC_BAD_TAG" &[(2, 6, Of(2, 12))];
    BadActionBadSetType "OFPBAC_BAD_SET_TYPE" &[(1, 2, NxPair(1, 523)), (3, 6, Of(2, 13))];
    BadActionBadSetLen "OFPBAC_BAD_SET_LEN" &[(1, 2, NxPair(1, 524)), (3, 6, Of(2, 14))];
    BadActionBadSetArgument "OFPBAC_BAD_SET_ARGUMENT" &[(1, 2, NxPair(1, 525)), (3, 6, Of(2, 15))];
    BadActionBadSetMask "OFPBAC_BAD_SET_MASK" &[(4, 5, Onf(4250)), (6, 6, Of(2, 16))];
    BadActionBadMeter "OFPBAC_BAD_METER" &[(6, 6, Of(2, 17))];
    BadActionMustBeZero "NXBAC_MUST_BE_ZERO" &[(1, 2, NxPair(2, 256)), (3, 6, Nx(11))];
    BadActionBadConjunction "NXBAC_BAD_CONJUNCTION" &[(1, 2, NxPair(2, 526)), (3, 6, Nx(15))];
    BadActionBadHeaderType "NXBAC_BAD_HEADER_TYPE" &[(4, 6, Nx(39))];
    BadActionUnknownEdProp "NXBAC_UNKNOWN_ED_PROP" &[(4, 6, Nx(40))];
    BadActionBadEdProp "NXBAC_BAD_ED_PROP" &[(4, 6, Nx(41))];
    BadActionCtDatapathSupport "NXBAC_CT_DATAPATH_SUPPORT" &[(1, 2, NxPair(1, 265)), (3, 6, Nx(42))];
    BadInstructionUnknownInst "OFPBIC_UNKNOWN_INST" &[(2, 6, Of(3, 0))];
    BadInstructionUnsupInst "OFPBIC_UNSUP_INST" &[(1, 1, NxPair(2, 257)), (2, 6, Of(3, 1))];
    BadInstructionBadTableId "OFPBIC_BAD_TABLE_ID" &[(2, 6, Of(3, 2))];
    BadInstructionUnsupMetadata "OFPBIC_UNSUP_METADATA" &[(2, 6, Of(3, 3))];
    BadInstructionUnsupMetadataMask "OFPBIC_UNSUP_METADATA_MASK" &[(2, 6, Of(3, 4))];
    BadInstructionBadExperimenter "OFPBIC_BAD_EXPERIMENTER" &[(2, 6, Of(3, 5))];
    BadInstructionBadExpType "OFPBIC_BAD_EXP_TYPE" &[(2, 2, Of(3, 5)), (3, 6, Of(3, 6))];
    BadInstructionBadLen "OFPBIC_BAD_LEN" &[(3, 6, Of(3, 7))];
    BadInstructionEperm "OFPBIC_EPERM" &[(3, 6, Of(3, 8))];
    BadInstructionDupInst "OFPBIC_DUP_INST" &[(2, 2, NxPair(3, 256)), (3, 4, Onf(2600)), (5, 6, Of(3, 9))];
    BadMatchBadType "OFPBMC_BAD_TYPE" &[(2, 6, Of(4, 0))];
    BadMatchBadLen "OFPBMC_BAD_LEN" &[(2, 6, Of(4, 1))];
    BadMatchBadTag "OFPBMC_BAD_TAG" &[(2, 6, Of(4, 2))];
    BadMatchBadDlAddrMask "OFPBMC_BAD_DL_ADDR_MASK" &[(2, 6, Of(4, 3))];
    BadMatchBadNwAddrMask "OFPBMC_BAD_NW_ADDR_MASK" &[(2, 6, Of(4, 4))];
    BadMatchBadWildcards "OFPBMC_BAD_WILDCARDS" &[(1, 1, NxPair(1, 262)), (2, 6, Of(4, 5))];
    BadMatchBadField "OFPBMC_BAD_FIELD" &[(1, 1, NxPair(0, 263)), (2, 6, Of(4, 6))];
    BadMatchBadValue "OFPBMC_BAD_VALUE" &[(1, 1, NxPair(1, 258)), (2, 6, Of(4, 7))];
    BadMatchBadMask "OFPBMC_BAD_MASK" &[(1, 2, NxPair(1, 259)), (3, 6, Of(4, 8))];
    BadMatchBadPrereq "OFPBMC_BAD_PREREQ" &[(1, 2, NxPair(1, 260)), (3, 6, Of(4, 9))];
    BadMatchDupField "OFPBMC_DUP_FIELD" &[(1, 2, NxPair(1, 261)), (3, 6, Of(4, 10))];
    BadMatchEperm "OFPBMC_EPERM" &[(3, 6, Of(4, 11))];
    BadMatchCtDatapathSupport "NXBMC_CT_DATAPATH_SUPPORT" &[(1, 2, NxPair(1, 264)), (3, 6, Nx(43))];
    FlowModFailedUnknown "OFPFMFC_UNKNOWN" &[(2, 6, Of(5, 0))];
    FlowModFailedTableFull "OFPFMFC_TABLE_FULL" &[(1, 1, Of(3, 0)), (2, 6, Of(5, 1))];
    FlowModFailedBadTableId "OFPFMFC_BAD_TABLE_ID" &[(2, 6, Of(5, 2))];
    FlowModFailedOverlap "OFPFMFC_OVERLAP" &[(1, 1, Of(3, 1)), (2, 6, Of(5, 3))];
    FlowModFailedEperm "OFPFMFC_EPERM" &[(1, 1, Of(3, 2)), (2, 6, Of(5, 4))];
    FlowModFailedBadTimeout "OFPFMFC_BAD_TIMEOUT" &[(2, 6, Of(5, 5))];
    FlowModFailedBadEmergTimeout "OFPFMFC_BAD_EMERG_TIMEOUT" &[(1, 1, Of(3, 3))];
    FlowModFailedBadCommand "OFPFMFC_BAD_COMMAND" &[(1, 1, Of(3, 4)), (2, 6, Of(5, 6))];
    FlowModFailedBadFlags "OFPFMFC_BAD_FLAGS" &[(1, 1, NxPair(3, 258)), (2, 2, NxPair(5, 258)), (3, 6, Of(5, 7))];
    FlowModFailedCantSync "OFPFMFC_CANT_SYNC" &[(5, 6, Of(5, 8))];
    FlowModFailedBadPriority "OFPFMFC_BAD_PRIORITY" &[(4, 4, Onf(2360)), (5, 6, Of(5, 9))];
    FlowModFailedIsSync "OFPFMFC_IS_SYNC" &[(5, 6, Of(5, 10))];
    FlowModFailedUnsupported "OFPFMFC_UNSUPPORTED" &[(1, 1, Of(3, 5))];
    FlowModFailedHardware "NXFMFC_HARDWARE" &[(1, 2, NxPair(5, 256)), (3, 6, Nx(12))];
    FlowModFailedNxBadTableId "NXFMFC_BAD_TABLE_ID" &[(1, 2, NxPair(5, 257)), (3, 6, Nx(13))];
    FlowModFailedInvalidTlvField "NXFMFC_INVALID_TLV_FIELD" &[(1, 2, NxPair(1, 536)), (3, 6, Nx(37))];
    GroupModFailedGroupExists "OFPGMFC_GROUP_EXISTS" &[(1, 1, NxPair(6, 0)), (2, 6, Of(6, 0))];
    GroupModFailedInvalidGroup "OFPGMFC_INVALID_GROUP" &[(1, 1, NxPair(6, 1)), (2, 6, Of(6, 1))];
    GroupModFailedWeightUnsupported "OFPGMFC_WEIGHT_UNSUPPORTED" &[(1, 1, NxPair(6, 2)), (2, 6, Of(6, 2))];
    GroupModFailedOutOfGroups "OFPGMFC_OUT_OF_GROUPS" &[(1, 1, NxPair(6, 3)), (2, 6, Of(6, 3))];
    GroupModFailedOutOfBuckets "OFPGMFC_OUT_OF_BUCKETS" &[(1, 1, NxPair(6, 4)), (2, 6, Of(6, 4))];
    GroupModFailedChainingUnsupported "OFPGMFC_CHAINING_UNSUPPORTED" &[(1, 1, NxPair(6, 5)), (2, 6, Of(6, 5))];
    GroupModFailedWatchUnsupported "OFPGMFC_WATCH_UNSUPPORTED" &[(1, 1, NxPair(6, 6)), (2, 6, Of(6, 6))];
    GroupModFailedLoop "OFPGMFC_LOOP" &[(1, 1, NxPair(6, 7)), (2, 6, Of(6, 7))];
    GroupModFailedUnknownGroup "OFPGMFC_UNKNOWN_GROUP" &[(1, 1, NxPair(6, 8)), (2, 6, Of(6, 8))];
    GroupModFailedChainedGroup "OFPGMFC_CHAINED_GROUP" &[(1, 1, NxPair(6, 9)), (3, 6, Of(6, 9))];
    GroupModFailedBadType "OFPGMFC_BAD_TYPE" &[(1, 1, NxPair(6, 10)), (3, 6, Of(6, 10))];
    GroupModFailedBadCommand "OFPGMFC_BAD_COMMAND" &[(1, 1, NxPair(6, 11)), (3, 6, Of(6, 11))];
    GroupModFailedBadBucket "OFPGMFC_BAD_BUCKET" &[(1, 1, NxPair(6, 12)), (3, 6, Of(6, 12))];
    GroupModFailedBadWatch "OFPGMFC_BAD_WATCH" &[(1, 1, NxPair(6, 13)), (3, 6, Of(6, 13))];
    GroupModFailedEperm "OFPGMFC_EPERM" &[(1, 1, NxPair(6, 14)), (3, 6, Of(6, 14))];
    GroupModFailedUnknownBucket "OFPGMFC_UNKNOWN_BUCKET" &[(1, 1, NxPair(6, 15)), (6, 6, Of(6, 15))];
    GroupModFailedBucketExists "OFPGMFC_BUCKET_EXISTS" &[(1, 1, NxPair(6, 16)), (6, 6, Of(6, 16))];
    PortModFailedBadPort "OFPPMFC_BAD_PORT" &[(1, 1, Of(4, 0)), (2, 6, Of(7, 0))];
    PortModFailedBadHwAddr "OFPPMFC_BAD_HW_ADDR" &[(1, 1, Of(4, 1)), (2, 6, Of(7, 1))];
    PortModFailedBadConfig "OFPPMFC_BAD_CONFIG" &[(2, 6, Of(7, 2))];
    PortModFailedBadAdvertise "OFPPMFC_BAD_ADVERTISE" &[(2, 6, Of(7, 3))];
    PortModFailedEperm "OFPPMFC_EPERM" &[(3, 6, Of(7, 4))];
    TableModFailedBadTable "OFPTMFC_BAD_TABLE" &[(2, 6, Of(8, 0))];
    TableModFailedBadConfig "OFPTMFC_BAD_CONFIG" &[(2, 6, Of(8, 1))];
    TableModFailedEperm "OFPTMFC_EPERM" &[(3, 6, Of(8, 2))];
    QueueOpFailedBadPort "OFPQOFC_BAD_PORT" &[(1, 1, Of(5, 0)), (2, 6, Of(9, 0))];
    QueueOpFailedBadQueue "OFPQOFC_BAD_QUEUE" &[(1, 1, Of(5, 1)), (2, 6, Of(9, 1))];
    QueueOpFailedEperm "OFPQOFC_EPERM" &[(1, 1, Of(5, 2)), (2, 6, Of(9, 2))];
    QueueOpFailedQueueError "NXQOFC_QUEUE_ERROR" &[(5, 6, Nx(23))];
    SwitchConfigFailedBadFlags "OFPSCFC_BAD_FLAGS" &[(2, 6, Of(10, 0))];
    SwitchConfigFailedBadLen "OFPSCFC_BAD_LEN" &[(2, 6, Of(10, 1))];
    SwitchConfigFailedEperm "OFPSCFC_EPERM" &[(3, 6, Of(10, 2))];
    RoleRequestFailedStale "OFPRRFC_STALE" &[(3, 6, Of(11, 0))];
    RoleRequestFailedUnsup "OFPRRFC_UNSUP" &[(3, 6, Of(11, 1))];
    RoleRequestFailedBadRole "OFPRRFC_BAD_ROLE" &[(1, 2, NxPair(1, 513)), (3, 6, Of(11, 2))];
    RoleRequestFailedIdUnsup "OFPRRFC_ID_UNSUP" &[(6, 6, Of(11, 3))];
    RoleRequestFailedIdInUse "OFPRRFC_ID_IN_USE" &[(6, 6, Of(11, 4))];
    MeterModFailedUnknown "OFPMMFC_UNKNOWN" &[(4, 6, Of(12, 0))];
    MeterModFailedMeterExists "OFPMMFC_METER_EXISTS" &[(4, 6, Of(12, 1))];
    MeterModFailedInvalidMeter "OFPMMFC_INVALID_METER" &[(4, 6, Of(12, 2))];
    MeterModFailedUnknownMeter "OFPMMFC_UNKNOWN_METER" &[(4, 6, Of(12, 3))];
    MeterModFailedBadCommand "OFPMMFC_BAD_COMMAND" &[(4, 6, Of(12, 4))];
    MeterModFailedBadFlags "OFPMMFC_BAD_FLAGS" &[(4, 6, Of(12, 5))];
    MeterModFailedBadRate "OFPMMFC_BAD_RATE" &[(4, 6, Of(12, 6))];
    MeterModFailedBadBurst "OFPMMFC_BAD_BURST" &[(4, 6, Of(12, 7))];
    MeterModFailedBadBand "OFPMMFC_BAD_BAND" &[(4, 6, Of(12, 8))];
    MeterModFailedBadBandValue "OFPMMFC_BAD_BAND_VALUE" &[(4, 6, Of(12, 9))];
    MeterModFailedOutOfMeters "OFPMMFC_OUT_OF_METERS" &[(4, 6, Of(12, 10))];
    MeterModFailedOutOfBands "OFPMMFC_OUT_OF_BANDS" &[(4, 6, Of(12, 11))];
    TableFeaturesFailedBadTable "OFPTFFC_BAD_TABLE" &[(4, 6, Of(13, 0))];
    TableFeaturesFailedBadMetadata "OFPTFFC_BAD_METADATA" &[(4, 6, Of(13, 1))];
    TableFeaturesFailedEperm "OFPTFFC_EPERM" &[(4, 6, Of(13, 5))];
    TableFeaturesFailedBadCapa "OFPTFFC_BAD_CAPA" &[(6, 6, Of(13, 6))];
    TableFeaturesFailedBadMaxEnt "OFPTFFC_BAD_MAX_ENT" &[(6, 6, Of(13, 7))];
    TableFeaturesFailedBadFeatures "OFPTFFC_BAD_FEATURES" &[(6, 6, Of(13, 8))];
    TableFeaturesFailedBadCommand "OFPTFFC_BAD_COMMAND" &[(6, 6, Of(13, 9))];
    TableFeaturesFailedTooMany "OFPTFFC_TOO_MANY" &[(6, 6, Of(13, 10))];
    TableFeaturesFailedDupTable "NXTFFC_DUP_TABLE" &[(4, 6, Nx(44))];
    BadPropertyBadType "OFPBPC_BAD_TYPE" &[(1, 2, NxPair(13, 2)), (3, 3, Nx(25)), (4, 4, Of(13, 2)), (5, 6, Of(14, 0))];
    BadPropertyBadLen "OFPBPC_BAD_LEN" &[(1, 2, NxPair(13, 3)), (3, 3, Nx(26)), (4, 4, Of(13, 3)), (5, 6, Of(14, 1))];
    BadPropertyBadValue "OFPBPC_BAD_VALUE" &[(1, 2, NxPair(13, 4)), (3, 3, Nx(27)), (4, 4, Of(13, 4)), (5, 6, Of(14, 2))];
    BadPropertyTooMany "OFPBPC_TOO_MANY" &[(1, 2, NxPair(14, 3)), (3, 3, Nx(28)), (4, 4, Onf(4443)), (5, 6, Of(14, 3))];
    BadPropertyDupType "OFPBPC_DUP_TYPE" &[(1, 2, NxPair(14, 4)), (3, 3, Nx(29)), (4, 4, Onf(4444)), (5, 6, Of(14, 4))];
    BadPropertyBadExperimenter "OFPBPC_BAD_EXPERIMENTER" &[(1, 2, NxPair(14, 5)), (3, 3, Nx(30)), (4, 4, Onf(4445)), (5, 6, Of(14, 5))];
    BadPropertyBadExpType "OFPBPC_BAD_EXP_TYPE" &[(1, 2, NxPair(14, 6)), (3, 3, Nx(31)), (4, 4, Onf(4446)), (5, 6, Of(14, 6))];
    BadPropertyBadExpValue "OFPBPC_BAD_EXP_VALUE" &[(1, 2, NxPair(14, 7)), (3, 3, Nx(32)), (4, 4, Onf(4447)), (5, 6, Of(14, 7))];
    BadPropertyEperm "OFPBPC_EPERM" &[(1, 2, NxPair(14, 8)), (3, 3, Nx(33)), (4, 4, Onf(4448)), (5, 6, Of(14, 8))];
    AsyncConfigFailedInvalid "OFPACFC_INVALID" &[(4, 4, Onf(2370)), (5, 6, Of(15, 0))];
    AsyncConfigFailedUnsupported "OFPACFC_UNSUPPORTED" &[(4, 4, Onf(2371)), (5, 6, Of(15, 1))];
    AsyncConfigFailedEperm "OFPACFC_EPERM" &[(4, 4, Onf(2372)), (5, 6, Of(15, 2))];
    BundleFailedUnknown "OFPBFC_UNKNOWN" &[(4, 4, Onf(2300)), (5, 6, Of(17, 0))];
    BundleFailedEperm "OFPBFC_EPERM" &[(4, 4, Onf(2301)), (5, 6, Of(17, 1))];
    BundleFailedBadId "OFPBFC_BAD_ID" &[(4, 4, Onf(2302)), (5, 6, Of(17, 2))];
    BundleFailedBundleExist "OFPBFC_BUNDLE_EXIST" &[(4, 4, Onf(2303)), (5, 6, Of(17, 3))];
    BundleFailedBundleClosed "OFPBFC_BUNDLE_CLOSED" &[(4, 4, Onf(2304)), (5, 6, Of(17, 4))];
    BundleFailedOutOfBundles "OFPBFC_OUT_OF_BUNDLES" &[(4, 4, Onf(2305)), (5, 6, Of(17, 5))];
    BundleFailedBadType "OFPBFC_BAD_TYPE" &[(4, 4, Onf(2306)), (5, 6, Of(17, 6))];
    BundleFailedBadFlags "OFPBFC_BAD_FLAGS" &[(4, 4, Onf(2307)), (5, 6, Of(17, 7))];
    BundleFailedMsgBadLen "OFPBFC_MSG_BAD_LEN" &[(4, 4, Onf(2308)), (5, 6, Of(17, 8))];
    BundleFailedMsgBadXid "OFPBFC_MSG_BAD_XID" &[(4, 4, Onf(2309)), (5, 6, Of(17, 9))];
    BundleFailedMsgUnsup "OFPBFC_MSG_UNSUP" &[(4, 4, Onf(2310)), (5, 6, Of(17, 10))];
    BundleFailedMsgConflict "OFPBFC_MSG_CONFLICT" &[(4, 4, Onf(2311)), (5, 6, Of(17, 11))];
    BundleFailedMsgTooMany "OFPBFC_MSG_TOO_MANY" &[(4, 4, Onf(2312)), (5, 6, Of(17, 12))];
    BundleFailedMsgFailed "OFPBFC_MSG_FAILED" &[(4, 4, Onf(2313)), (5, 6, Of(17, 13))];
    BundleFailedTimeout "OFPBFC_TIMEOUT" &[(4, 4, Onf(2314)), (5, 6, Of(17, 14))];
    BundleFailedBundleInProgress "OFPBFC_BUNDLE_IN_PROGRESS" &[(4, 4, Onf(2315)), (5, 6, Of(17, 15))];
    BundleFailedSchedNotSupported "OFPBFC_SCHED_NOT_SUPPORTED" &[(6, 6, Of(17, 16))];
    BundleFailedSchedFuture "OFPBFC_SCHED_FUTURE" &[(6, 6, Of(17, 17))];
    BundleFailedSchedPast "OFPBFC_SCHED_PAST" &[(6, 6, Of(17, 18))];
    BundleFailedBadVersion "OFPBFC_BAD_VERSION" &[(5, 6, Nx(22))];
    FlowMonitorFailedUnknown "OFPMOFC_UNKNOWN" &[(5, 6, Of(16, 0))];
    FlowMonitorFailedMonitorExists "OFPMOFC_MONITOR_EXISTS" &[(1, 2, NxPair(1, 517)), (3, 4, Nx(6)), (5, 6, Of(16, 1))];
    FlowMonitorFailedInvalidMonitor "OFPMOFC_INVALID_MONITOR" &[(5, 6, Of(16, 2))];
    FlowMonitorFailedUnknownMonitor "OFPMOFC_UNKNOWN_MONITOR" &[(1, 2, NxPair(1, 519)), (3, 4, Nx(8)), (5, 6, Of(16, 3))];
    FlowMonitorFailedBadCommand "OFPMOFC_BAD_COMMAND" &[(5, 6, Of(16, 4))];
    FlowMonitorFailedBadFlags "OFPMOFC_BAD_FLAGS" &[(1, 2, NxPair(1, 518)), (3, 4, Nx(7)), (5, 6, Of(16, 5))];
    FlowMonitorFailedBadTableId "OFPMOFC_BAD_TABLE_ID" &[(5, 6, Of(16, 6))];
    FlowMonitorFailedBadOut "OFPMOFC_BAD_OUT" &[(5, 6, Of(16, 7))];
    TlvTableModFailedBadCommand "NXTTMFC_BAD_COMMAND" &[(1, 2, NxPair(1, 527)), (3, 6, Nx(16))];
    TlvTableModFailedBadOptLen "NXTTMFC_BAD_OPT_LEN" &[(1, 2, NxPair(1, 528)), (3, 6, Nx(17))];
    TlvTableModFailedBadFieldIdx "NXTTMFC_BAD_FIELD_IDX" &[(1, 2, NxPair(1, 529)), (3, 6, Nx(18))];
    TlvTableModFailedTableFull "NXTTMFC_TABLE_FULL" &[(1, 2, NxPair(1, 530)), (3, 6, Nx(19))];
    TlvTableModFailedAlreadyMapped "NXTTMFC_ALREADY_MAPPED" &[(1, 2, NxPair(1, 531)), (3, 6, Nx(20))];
    TlvTableModFailedDupEntry "NXTTMFC_DUP_ENTRY" &[(1, 2, NxPair(1, 532)), (3, 6, Nx(21))];
    TlvTableModFailedInvalidTlvDel "NXTTMFC_INVALID_TLV_DEL" &[(1, 2, NxPair(1, 537)), (3, 6, Nx(38))];
    ResumeNotSupported "NXR_NOT_SUPPORTED" &[(1, 2, NxPair(1, 533)), (3, 6, Nx(34))];
    ResumeStale "NXR_STALE" &[(1, 2, NxPair(1, 534)), (3, 6, Nx(35))];
    NxStatsNotConfigured "NXST_NOT_CONFIGURED" &[(1, 2, NxPair(1, 535)), (3, 6, Nx(36))];
}
