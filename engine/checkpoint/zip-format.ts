/** What reader and writer of zip files share: signatures, sizes and limits (PKWARE APPNOTE 6.3). */
export const LOCAL_HEADER = { signature: 0x04034b50, bytes: 30 };
export const CENTRAL_HEADER = { signature: 0x02014b50, bytes: 46 };
export const DATA_DESCRIPTOR = { signature: 0x08074b50, bytes: 16, zip64Bytes: 24 };
export const END = { signature: 0x06054b50, bytes: 22 };
export const ZIP64_END = { signature: 0x06064b50, bytes: 56 };
export const ZIP64_LOCATOR = { signature: 0x07064b50, bytes: 20 };

/** Extra field with the sizes that do not fit 32 bits. */
export const ZIP64_EXTRA = 0x0001;
/** torch's own extra field, 'FB': it pads a record's data to the alignment. */
export const PADDING_EXTRA = 0x4246;
/** A field with this value has its true value in the zip64 extra field. */
export const MARKER_32 = 0xffffffff;
export const MARKER_16 = 0xffff;

export const STORED = 0;
export const DEFLATED = 8;
