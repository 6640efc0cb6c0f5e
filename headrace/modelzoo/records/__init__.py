"""Records of the Model Zoo: TFRecords, CSV and HDF5 files in, batches out; and TFRecords written."""
