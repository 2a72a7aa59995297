"""Files of other programs: CTranslate2, torch.export, safetensors."""
